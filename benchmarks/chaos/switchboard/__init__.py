"""Kills and faults against Switchboard, judged by what callers were told and what the other side received.

    callers ---- gate ---- POST /api/ingest[/batch] ----.                      .--- gate --- finance
    people  ---- Telegram's simulator ---- long poll ---+--- switchboard ------+--- gate --- health
                                                        |     killed again     '--- gate --- general
                                                        '<------ notify.dispatch ------------'
                                                        '-------> messenger ---> the simulators

At the gates calls are slow, break, or get no answer. Nothing that is judged comes from Switchboard's own account alone:
callers remember what they were told, the simulators what was said in the chats, the specialists what they were asked to
do, and a trigger of ours notes every end of a request.
"""
