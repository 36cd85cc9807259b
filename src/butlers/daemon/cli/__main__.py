from butlers.daemon.cli import main

main()
