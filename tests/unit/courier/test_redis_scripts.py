"""Every call of the store is a script that has all functions it uses, and no other one."""

from __future__ import annotations

import re

from butlers.courier.redis_store import compose_scripts

MODEL = """\
local base = 1

local function one() end

-- Twice.
local function two() one() end

local function three() end
"""
CALLS = """\
local calls = {}

function calls.read() two() end

function calls.write() end

local result = calls()
three()
"""


def test_a_script_has_the_functions_that_its_call_uses():
    scripts = compose_scripts(MODEL, CALLS)
    functions = {name: re.findall(r"function ([\w.]+)", script) for name, script in scripts.items()}
    assert functions == {"read": ["one", "two", "three", "calls.read"], "write": ["three", "calls.write"]}
    assert all(script.startswith("local base = 1") for script in scripts.values())
    assert all(script.endswith("local result = calls()\nthree()\n") for script in scripts.values())
