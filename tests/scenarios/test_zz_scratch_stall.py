import asyncio, time
from tests.scenarios.overload import *
from tests.scenarios.switchboard_door import all_finished
from tests.system import running_system
async def test_rate(tmp_path, postgres_server):
    roster = crowded(tmp_path, admission="max_waiting = 2000")
    async with running_system(tmp_path, postgres_server, roster_dir=roster) as running:
        async with stalled(running):
            t=time.monotonic()
            for k in range(2):
                await hand_in_all(running, [message(running, f"m {k} {n}") for n in range(250)])
            print("accept", 500/(time.monotonic()-t))
        t=time.monotonic()
        await all_finished(running, deadline_s=120)
        print("finish", 500/(time.monotonic()-t))
