"""Who may log in to the embedded server: one role, with a password, and nobody else.

    <data_dir>/postgres.secret   the password of the role `butlers`, for us alone (0600)
    pg_hba.conf                  lets `butlers` in by password over the socket; every other login is refused

The role `butlers` owns our databases and may create databases; it is no superuser, so it reads no file and runs no
program. PostgreSQL's own superuser (`postgres`) has no password and no way in: what needs it is done with the server
stopped, in PostgreSQL's single-user mode, by the account that owns the files.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
from pathlib import Path

from butlers.storage.server_programs import HERE, ServerAccount, run_program, write_as

ROLE = "butlers"
_ITERATIONS = 4096  # of the hash; fewer are refused by some clients
_HBA = f"""# Written by butlers at every start of the server; changes are lost.
local all {ROLE} scram-sha-256
"""
_DATABASE_LINE = re.compile(r'1: datname = "([^"]+)"')

_MAKE_ROLE = f"""
do $$ begin
  if not exists (select from pg_catalog.pg_roles where rolname = '{ROLE}') then create role {ROLE}; end if;
end $$;

alter role {ROLE} with login nosuperuser createdb nocreaterole noreplication nobypassrls password '%s';

"""
# In each database: what an earlier version made as superuser. Sequences of columns follow their tables.
_HAND_OVER = f"""
do $$ declare statement text; begin
  for statement in
    select format('alter schema %I owner to {ROLE}', nspname) from pg_catalog.pg_namespace
      where nspowner = 10 and oid >= 16384 and nspname !~ '^pg_'
    union all
    select format('alter %s %s owner to {ROLE}', case relkind when 'S' then 'sequence' when 'v' then 'view'
                  when 'm' then 'materialized view' else 'table' end, c.oid::regclass)
      from pg_catalog.pg_class c where relowner = 10 and c.oid >= 16384 and relkind in ('r', 'p', 'v', 'm', 'S')
       and not exists (select from pg_catalog.pg_depend d where d.classid = 'pg_class'::regclass and d.objid = c.oid
                        and d.refclassid = 'pg_class'::regclass and d.deptype in ('a', 'i') and relkind = 'S')
    union all
    select format('alter routine %s owner to {ROLE}', oid::regprocedure) from pg_catalog.pg_proc
      where proowner = 10 and oid >= 16384
    union all
    select format('alter type %s owner to {ROLE}', t.oid::regtype) from pg_catalog.pg_type t
      left join pg_catalog.pg_class c on c.oid = t.typrelid
      where typowner = 10 and t.oid >= 16384 and (typtype in ('e', 'd', 'r') or c.relkind = 'c')
  loop execute statement; end loop;
end $$;

"""


PASSWORD_FILE = "postgres.secret"  # noqa: S105  its name, in the data directory


def read_secret(file: Path) -> str | None:
    """The role's password, if there is one yet."""
    try:
        return file.read_text().strip() or None
    except FileNotFoundError:
        return None


def write_secret(file: Path, secret: str) -> None:
    """Keep a password, for us alone, all of it or nothing."""
    unfinished = file.with_name(f"{file.name}.new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(f"{secret}\n")
        opened.flush()
        os.fsync(opened.fileno())
    unfinished.replace(file)


def make_role(account: ServerAccount, pgdata: Path, secret: str, *settings: str) -> str | None:
    """Make the role, or give it this password; returns the complaint, if any. The server must not run."""
    owner = f"alter database postgres owner to {ROLE};\n\n"
    return _alone(account, pgdata, "template1", _MAKE_ROLE % _verifier(secret) + owner, *settings)[0]


def hand_over(account: ServerAccount, pgdata: Path) -> str | None:
    """Give the role everything that an earlier version made as superuser; the complaint, if any."""
    list_databases = "select datname from pg_catalog.pg_database where not datistemplate and datallowconn;\n\n"
    complaint, output = _alone(account, pgdata, "template1", list_databases)
    for name in _DATABASE_LINE.findall(output) if complaint is None else ():
        quoted = name.replace('"', '""')
        owner = f'alter database "{quoted}" owner to {ROLE};\n\n'
        complaint = complaint or _alone(account, pgdata, name, _HAND_OVER + owner)[0]
    return complaint


def write_rules(account: ServerAccount, pgdata: Path) -> None:
    """Say who may log in; read by the server when it starts."""
    write_as(account, pgdata, "pg_hba.conf", _HBA)


def _alone(
    account: ServerAccount, pgdata: Path, database: str, statements: str, *settings: str
) -> tuple[str | None, str]:
    """Run statements in single-user mode; each ends with a semicolon and an empty line (-j)."""
    strict = ("-c", "exit_on_error=on", "-c", "log_min_error_statement=panic", "-c", "log_checkpoints=off")
    arguments = ("--single", "-j", "-D", HERE, *strict, *settings, database)
    return run_program(account, "postgres", *arguments, folder=pgdata, text=statements)


def _verifier(secret: str) -> str:
    """What the server keeps of a password (RFC 5803), so that the password itself never reaches it."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", secret.encode(), salt, _ITERATIONS)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    salt64, stored64, server64 = (base64.b64encode(part).decode() for part in (salt, stored, server))
    return f"SCRAM-SHA-256${_ITERATIONS}:{salt64}${stored64}:{server64}"
