"""Operations: verbs that people and agents call, each declared once.

    operation   what a declaration says
    http        HTTP routes from the declarations        openapi    their description
    answers     JSON answers and errors of the HTTP API
    command     commands of the command line, and how answers print (..._lines)
    deliveries, dead_letters, recipients, mailbox         carried out by Messenger
    approvals                                             carried out by the butler whose actions they are
    requests, senders, connectors, backfill, butlers,
    routing (with extractions and service levels)         carried out by Switchboard
    table       all that have HTTP routes

A declaration imports no system: the system that carries the operation out binds it to a handler (`Tool.of`), and that
makes its MCP tool. The HTTP API and the command line read the declaration alone.
"""
