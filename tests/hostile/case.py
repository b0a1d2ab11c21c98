"""What a hostile (or legitimate) program of the suite is, and the text that is put into it.

A program that sees from the inside that its attack succeeded prints a line `ESCAPED <what>`; what shows only from
outside (a dead process, a connection, a changed file) the harness finds there. A program that succeeds hurts nothing but
the harness's own files, processes and listeners.
"""

import textwrap
from dataclasses import dataclass

TOOLS = '''
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
NUMBERS = {name: pair[os.uname().machine == "aarch64"] for name, pair in @NUMBERS@.items()}
def call(name, *arguments):
    """Return the result of a system call, or minus its error number."""
    values = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result = libc.syscall(ctypes.c_long(NUMBERS[name]), *values)
    return -ctypes.get_errno() if result == -1 else result
def attempt(what, function, *arguments):
    """Say that we escaped if the function neither raises nor returns a negative number; return its result."""
    try:
        result = function(*arguments)
    except BaseException as error:
        return print("refused:", what, repr(error))
    refused = isinstance(result, int) and result < 0
    print("refused:" if refused else "ESCAPED", what, result if refused else "")
    return result
'''.strip()

# name -> number on x86_64, on aarch64 (-1: there is none)
NUMBERS = {
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280), "capget": (125, 90),
    "capset": (126, 91), "clone": (56, 220), "clone3": (435, 435), "execveat": (322, 281), "fanotify_init": (300, 262),
    "finit_module": (313, 273), "fork": (57, -1), "fsopen": (430, 430), "inotify_init1": (294, 26),
    "io_uring_setup": (425, 425), "ioctl": (16, 29), "iopl": (172, -1), "ioprio_set": (251, 30), "kcmp": (312, 272),
    "keyctl": (250, 219), "memfd_create": (319, 279), "memfd_secret": (447, 447), "mknodat": (259, 33),
    "mlock": (149, 228), "mount": (165, 40), "move_pages": (279, 239), "mq_open": (240, 180),
    "mq_unlink": (241, 181), "mremap": (25, 216), "msgctl": (71, 187), "msgget": (68, 186),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "open_tree": (428, 428), "openat2": (437, 437),
    "perf_event_open": (298, 241), "personality": (135, 92), "pidfd_getfd": (438, 438), "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424), "pivot_root": (155, 41), "prlimit64": (302, 261), "process_madvise": (440, 440),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "ptrace": (101, 117), "quotactl": (179, 60),
    "request_key": (249, 218), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "sched_setattr": (314, 274),
    "semctl": (66, 191), "semget": (64, 190), "sethostname": (170, 161), "setns": (308, 268),
    "setpriority": (141, 140), "settimeofday": (164, 170), "shmctl": (31, 195), "shmget": (29, 194), "socket": (41, 198),
    "socketpair": (53, 199), "tgkill": (234, 131), "timer_create": (222, 107), "tkill": (200, 130), "truncate": (76, 45),
    "umount2": (166, 39), "unshare": (272, 97), "userfaultfd": (323, 282), "vfork": (58, -1),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One program, and what may come of it.

    program: source text; placeholders in it are replaced by the harness:
        @TOOLS@ the functions call() and attempt() above          @CANARY@ a file of labels, 0600 in a 0700 directory
        @SCRATCH@ the directory in which all of these lie          @OUTSIDE@ a directory that only the trainer's user may write
        @SHARED@ a directory that everybody may write              @PUBLIC@ the data from which runs get their copy
        @PROJECT@ this repository                                  @OTHER_RUN@ a work directory of another run
        @VICTIM@, @TRAINER@, @ZYGOTE@ process ids: of another program of the trainer's user, of ours, of the sandbox
        @PORT@, @UDP_PORT@ of listeners on 127.0.0.1               @UNIX@, @UNIX_DGRAM@ paths of listening sockets
        @ABSTRACT@, @ABSTRACT_DGRAM@ their abstract names, less the leading NUL
    needs: layers without which the attack is known to succeed, by the names of Harness.layers(), "a|b" where one of
        both is enough. Only without them its effects are a residual, listed in the README.
    says: text that stdout, note or submission_note must hold
    submission: any | none (what it leaves must not be taken) | invalid (if taken, the grader must refuse it, quickly)
    drastic: could hurt more than the run; only where the suite has a pid namespace of its own
    """

    kind: str
    name: str
    program: str
    statuses: tuple[str, ...] = ("ok", "error")
    needs: tuple[str, ...] = ()
    time_limit_s: float = 5.0
    says: str | None = None
    legitimate: bool = False
    submission: str = "any"
    drastic: bool = False

    def fill(self, values: dict[str, object]) -> str:
        """Return the source with every placeholder replaced."""
        source = textwrap.dedent(self.program).replace("@TOOLS@", TOOLS).replace("@NUMBERS@", repr(NUMBERS))
        for name, value in values.items():
            source = source.replace(f"@{name}@", str(value))
        return source

    def missing(self, layers: dict[str, bool]) -> list[str]:
        """Return the needs that no active layer meets."""
        return [need for need in self.needs if not any(layers.get(name, False) for name in need.split("|"))]
