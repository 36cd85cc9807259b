"""Work on foreign bytes in a process of its own, within a deadline and a memory limit.

    Isolate.run(function, data)  ->  worker process: function(data)  ->  JSON  ->  the caller validates it
                                     |
                                     exceeds a limit, or dies: it is killed, `IsolationFailed` says why, the next call
                                     starts a new one

Isolate    the parent's side: one warm worker, one call at a time       isolate.py
serve      the worker's side: limits, then calls until its pipe closes   worker.py
"""
