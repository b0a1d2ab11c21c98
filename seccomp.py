"""The system calls that a program may make: a seccomp filter, https://docs.kernel.org/userspace-api/seccomp_filter.html

What is not named here is allowed, up to the newest call that was looked at. The filter is for one process: its own id
is the only one that it may send signals to. A call costs about 40 ns more, a run about 0.5 ms.
"""

import ctypes
import errno
import os
import platform
import socket
import struct
import sys
from typing import NamedTuple

LINUX = sys.platform == "linux"
# The answer to calls that are closed, as name/number on x86_64/number on aarch64; a dash where the machine has none.
DENIED = {
    errno.EPERM: """
        fork/57/- vfork/58/- execve/59/221 execveat/322/281
        unshare/272/97 setns/308/268 mount/165/40 umount2/166/39 pivot_root/155/41 chroot/161/51 move_mount/429/429
        open_tree/428/428 fsopen/430/430 fsconfig/431/431 fsmount/432/432 fspick/433/433 mount_setattr/442/442
        ptrace/101/117 process_vm_readv/310/270 process_vm_writev/311/271 process_madvise/440/440 kcmp/312/272
        process_mrelease/448/448 pidfd_open/434/434 pidfd_getfd/438/438 pidfd_send_signal/424/424 tkill/200/130
        sched_setparam/142/118 sched_setscheduler/144/119 sched_setattr/314/274 ioprio_set/251/30
        migrate_pages/256/238 move_pages/279/239
        setuid/105/146 setgid/106/144 setreuid/113/145 setregid/114/143 setresuid/117/147 setresgid/119/149
        setfsuid/122/151 setfsgid/123/152 setgroups/116/159 capset/126/91 personality/135/92
        keyctl/250/219 add_key/248/217 request_key/249/218 bpf/321/280 perf_event_open/298/241 userfaultfd/323/282
        name_to_handle_at/303/264 open_by_handle_at/304/265 fanotify_init/300/262 fanotify_mark/301/263
        inotify_init/253/- inotify_init1/294/26 inotify_add_watch/254/27
        shmget/29/194 shmat/30/196 shmctl/31/195 semget/64/190 semop/65/193 semctl/66/191 semtimedop/220/192
        msgget/68/186 msgsnd/69/189 msgrcv/70/188 msgctl/71/187 mq_open/240/180 mq_unlink/241/181
        splice/275/76 tee/276/77 vmsplice/278/75
        mq_timedsend/242/182 mq_timedreceive/243/183 mq_notify/244/184
        chown/92/- fchown/93/55 lchown/94/- fchownat/260/54 truncate/76/45 mknod/133/- mknodat/259/33
        setxattr/188/5 lsetxattr/189/6 fsetxattr/190/7 removexattr/197/14 lremovexattr/198/15 fremovexattr/199/16
        sethostname/170/161 setdomainname/171/162 settimeofday/164/170 clock_settime/227/112 clock_adjtime/305/266
        adjtimex/159/171 reboot/169/142 swapon/167/224 swapoff/168/225 acct/163/89 syslog/103/116 vhangup/153/58
        quotactl/179/60 quotactl_fd/443/443 init_module/175/105 finit_module/313/273 delete_module/176/106
        kexec_load/246/104 kexec_file_load/320/294 iopl/172/- ioperm/173/- modify_ldt/154/- uselib/134/-
        lookup_dcookie/212/18 nfsservctl/180/42 statmount/457/457 listmount/458/458 lsm_set_self_attr/460/460""",
    errno.EACCES: "socket/41/198",  # of every family
    errno.ENOSYS: """
        clone3/435/435 memfd_create/319/279 memfd_secret/447/447 openat2/437/437 io_setup/206/0
        io_uring_setup/425/425 io_uring_enter/426/426 io_uring_register/427/427""",  # memfd is no address space
    errno.EOPNOTSUPP: "fallocate/285/47",  # gigabytes in a millisecond; posix_fallocate then writes them
    0: """chmod/90/- fchmod/91/52 fchmodat/268/53 fchmodat2/452/452 utime/132/- utimes/235/- futimesat/261/-
        utimensat/280/88 sched_setaffinity/203/122""",  # pretend success: libraries call these without need
}
LAST_KNOWN_CALL = 462  # newer calls are answered ENOSYS, and so are all of x32 (x86_64)
OWN_PID = object()  # in a Check: the process that the filter is for


class Check(NamedTuple):
    """A call that is allowed if (argument & mask) is one of `only`, and not `never`."""

    call: str
    argument: int
    error: int = errno.EPERM
    mask: int = 0xFFFFFFFF
    only: tuple = ()
    never: tuple = ()


CLONE_THREAD, CLONE_NAMESPACES = 0x10000, 0x7E020080
FCNTL_COMMANDS = (*range(8), 36, 37, 38, 1030, 1032)  # descriptors, flags, locks; no owners, signals, leases
IOCTL_COMMANDS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS TIOCGWINSZ FIONREAD FIONBIO FIO(N)CLEX
CHECKS = (
    Check("clone/56/220", 0, mask=CLONE_THREAD | CLONE_NAMESPACES, only=(CLONE_THREAD,)),
    Check("kill/62/129", 0, only=(OWN_PID,)),
    Check("tgkill/234/131", 0, only=(OWN_PID,)),
    Check("rt_sigqueueinfo/129/138", 0, only=(OWN_PID,)),
    Check("rt_tgsigqueueinfo/297/240", 0, only=(OWN_PID,)),
    Check("prlimit64/302/261", 0, only=(0, OWN_PID)),
    Check("setpriority/141/140", 0, only=(os.PRIO_PROCESS,)),
    Check("setpriority/141/140", 1, only=(0, OWN_PID)),
    Check("socketpair/53/199", 0, errno.EACCES, only=(socket.AF_UNIX,)),
    Check("socketpair/53/199", 1, errno.EACCES, mask=0xF, only=(socket.SOCK_STREAM,)),  # a datagram one reaches any socket
    Check("fcntl/72/25", 1, only=FCNTL_COMMANDS),
    Check("ioctl/16/29", 1, errno.ENOTTY, only=IOCTL_COMMANDS),
    Check("prctl/157/167", 0, never=(1, 35, 0x59616D61)),  # PR_SET_PDEATHSIG PR_SET_MM PR_SET_PTRACER
    # read-only, yet it empties the file
    Check("open/2/-", 1, mask=os.O_TRUNC | os.O_ACCMODE, never=(os.O_TRUNC,)),
    Check("openat/257/56", 2, mask=os.O_TRUNC | os.O_ACCMODE, never=(os.O_TRUNC,)),
)
MACHINES = {"x86_64": (1, 0xC000003E), "aarch64": (2, 0xC00000B7)}  # column of the tables above, architecture
LOAD, EQUAL, AT_LEAST, AND, RETURN = 0x20, 0x15, 0x35, 0x54, 0x06  # opcodes of classic BPF
ALLOW, ANSWER = 0x7FFF0000, 0x00050000  # ANSWER | errno; 0 pretends success


def build_filter(pid: int, machine: str) -> bytes:
    """Return the BPF program for the process `pid`. Its input is struct seccomp_data: nr, arch, ip, six arguments."""
    column, architecture = MACHINES[machine]
    load_number = (LOAD, 0, 0, 0)
    code = [
        (LOAD, 0, 0, 4),
        (EQUAL, 1, 0, architecture),  # (opcode, instructions to skip if true, if false, operand)
        (RETURN, 0, 0, ANSWER | errno.EPERM),  # int 0x80 enters with another table of numbers
        load_number,
        (AT_LEAST, 0, 1, LAST_KNOWN_CALL + 1),
        (RETURN, 0, 0, ANSWER | errno.ENOSYS),
    ]
    for check in CHECKS:
        if (number := check.call.split("/")[column]) == "-":
            continue
        values = [pid if value is OWN_PID else value for value in check.only or check.never]
        n = len(values)
        body = [(LOAD, 0, 0, 16 + 8 * check.argument), (AND, 0, 0, check.mask)]
        if check.only:  # equal: skip the other comparisons and the answer
            body += [(EQUAL, n - i, 0, value) for i, value in enumerate(values)]
        else:  # equal: skip to the answer; the last comparison skips it
            body += [(EQUAL, n - 1 - i, i == n - 1, value) for i, value in enumerate(values)]
        body += [(RETURN, 0, 0, ANSWER | check.error), load_number]
        code += [(EQUAL, 0, len(body), int(number)), *body]
    for error, calls in DENIED.items():
        for number in (call.split("/")[column] for call in calls.split()):
            if number != "-":
                code += [(EQUAL, 0, 1, int(number)), (RETURN, 0, 0, ANSWER | error)]
    code.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def filter_calls(pid: int) -> None:
    """Put the seccomp filter on this process for good."""
    code = ctypes.create_string_buffer(build_filter(pid, platform.machine()))
    program = ctypes.create_string_buffer(struct.pack("HP", len(code) // 8, ctypes.addressof(code)))
    libc_call("prctl", 22, 2, program)  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


_LIBC = ctypes.CDLL(None, use_errno=True)


def libc_call(name: str, *arguments) -> int:
    """Call a function of the C library that returns -1 and errno when it fails. Raises OSError."""
    result = getattr(_LIBC, name)(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def system_call(number: int, *arguments) -> int:
    """Make a raw system call. Raises OSError."""
    return libc_call("syscall", number, *arguments)


def prctl(option: int, value: int) -> None:
    if LINUX:
        libc_call("prctl", option, value, 0, 0, 0)
