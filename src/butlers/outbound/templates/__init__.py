"""Templates of messages: stored in versions, checked when they are stored, rendered in a process of their own.

    put      document  -> shape  -> names used = variables declared  -> trial  -> version n + 1
    check    variables -> every declared one, of its type, and no other         -> the version to pin
    render   version + locale + channel -> content -> Liquid -> MJML -> HTML with its styles in the tags

locales.py      language tags and their fallback, pure
variables.py    what a template declares against what a message brings, pure
engine.py       Liquid, MJML and CSS: runs in the worker process only, because templates and values are foreign
renderer.py     the parent's side of that process: bounded in time, memory and size; every failure is typed
store.py        versions in PostgreSQL, and the seam of the delivery runtime: `Templates`

Nothing is imported here: the worker process loads `engine` alone.
"""
