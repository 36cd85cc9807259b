"""Reading mail: the tools over the inbox, and the reports that say what became of mail that was sent.

ImapClient     one short connection per task, in a thread, bounded in time and size      imap.py, folder.py
Mail           a mail as bounded text, headers and attachment names                      mime.py
MailParser     foreign mail is taken apart in a worker process, within limits            parser.py
DeliveryReport a mail server's report about a mail of ours (RFC 3464)                    reports.py
Bounces        reports become receipts and suppressed recipients                         bounces.py
InboxRouter    everything else goes to Switchboard's ingest door                         routing.py
MailboxTools   email_search_inbox, email_read_message, email_check_and_route_inbox       tools.py
"""
