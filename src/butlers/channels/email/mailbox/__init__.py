"""Reading mail: the tools over the inbox, and the reports that say what became of mail that was sent.

MailServer     where a mail server is, how it is encrypted, what a failed connection means   mail_server.py
ImapClient     one short connection per task, in a thread, bounded in time and size         imap.py
Mail           a mail as bounded text, headers and attachment names                         mime.py
MailParser     foreign mail is taken apart in a worker process: a mail, or a report         reports.py
NewMail        new mail, a few at a time; what cannot be handled is quarantined             batches.py
InboxRouter    reports become receipts; everything else goes to Switchboard's ingest door    routing.py
MailboxTools   email_search_inbox, email_read_message, email_check_and_route_inbox          tools.py
"""
