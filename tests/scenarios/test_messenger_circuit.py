from __future__ import annotations
import time
from butlers.clock import ManualClock, SystemClock
from butlers.butler.identity import Role
from tests.scenarios.messenger_door import *
from tests.system import running_system

async def test_spike(tmp_path, postgres_server):
    t=time.time()
    async with running_system(tmp_path, postgres_server, clock=ManualClock(SystemClock().now()), names=["messenger"]) as running:
        print("up", time.time()-t); t=time.time()
        print(running.tokens.secret_of("switchboard"))
        print(await deliver(running, wish("a")), time.time()-t)
        print(await call(running, "messenger", "messenger_circuit_status", {}))
        print(await call(running, "messenger", "messenger_dry_run", {"notify_request": wish("b")}))
        t=time.time()
        for n in range(20):
            await call(running, "messenger", "messenger_dry_run", {"notify_request": wish("b")})
        print("20 dry", time.time()-t)
        t=time.time()
        for n in range(20):
            await deliver(running, wish("b", recipient=str(n+5)))
        print("20 del", time.time()-t)
    print("down", time.time()-t)
