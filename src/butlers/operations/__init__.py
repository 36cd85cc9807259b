"""Operations: verbs that people and agents call, each declared once.

    operation     what a declaration says
    http          HTTP routes from the declarations, and JSON answers        openapi   their description
    table         all that have HTTP routes
    requests, operators, routing, webhooks                carried out by Switchboard
    connectors, connector_statistics                      carried out by Switchboard
    deliveries (with delivery_lines), dead_letters        carried out by Messenger
    people        senders by Switchboard, recipients by Messenger
    approvals     carried out by the butler whose actions they are
    why           the command that asks several of them

A declaration imports no system: the system that carries the operation out binds it to a handler (`Tool.of`), and that
makes its MCP tool. The HTTP API and the command line read the declaration alone.
"""
