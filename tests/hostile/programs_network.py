"""Programs that talk to others: the listeners of the harness count connections and datagrams."""

from case import Case

ANY_SOCKET = ("seccomp",)  # the call itself; a network namespace would only make it useless
INET = ("seccomp|network",)
UNIX = ("seccomp",)  # a socket by path: no namespace and no Landlock before ABI 9 keeps it


def talk(name: str, program: str, needs: tuple[str, ...], **options) -> Case:
    return Case("network", name, "@TOOLS@\nimport socket\n" + program, needs=needs, **options)


CASES = [
    talk("TCP", 'attempt("connect", lambda: socket.create_connection(("127.0.0.1", @PORT@), 1).sendall(b"x"))', INET),
    talk("TCP over IPv6 and by name", """
attempt("connect", lambda: socket.create_connection(("::ffff:127.0.0.1", @PORT@), 1))
attempt("connect", lambda: socket.create_connection(("localhost", @PORT@), 1))
""", INET),
    talk("TCP by urllib", """
import urllib.request
try: urllib.request.urlopen("http://127.0.0.1:@PORT@/", timeout=0.3)
except OSError as error: print("refused:", error)
""", INET),
    talk("TCP by asyncio", """
import asyncio
try: asyncio.run(asyncio.wait_for(asyncio.open_connection("127.0.0.1", @PORT@), 1)); print("ESCAPED")
except Exception as error: print("refused:", error)
""", INET),
    talk("TCP that sends with the handshake", """
s = attempt("socket", socket.socket)
if s: attempt("fast open", s.sendto, b"x", 0x20000000, ("127.0.0.1", @PORT@))
""", ANY_SOCKET),
    talk("TCP in raw system calls", """
import struct
attempt("socketcall", call, "socket", 2, 1, 0)
attempt("socketcall with high bits", call, "socket", 2 | 1 << 32, 1, 0)
attempt("MPTCP", call, "socket", 2, 1, 262)
attempt("SCTP", call, "socket", 2, 1, 132)
""", ANY_SOCKET),
    talk("UDP", 'attempt("sendto", lambda: socket.socket(type=2).sendto(b"x", ("127.0.0.1", @UDP_PORT@)))', INET),
    talk("UDP to the rest of the world", """
try: socket.socket(type=2).sendto(b"x", ("192.0.2.1", 53)); print("ESCAPED: sent")
except OSError as error: print("refused:", error)
try: print("ESCAPED", socket.getaddrinfo("example.invalid.", 80))
except OSError as error: print("refused:", error)
""", INET),
    talk("TCP to the rest of the world", """
try:
    s = socket.socket(); s.settimeout(0.3); s.connect(("192.0.2.1", 80)); print("ESCAPED")
except TimeoutError: print("ESCAPED: a packet left")
except OSError as error: print("refused:", error)
""", INET),
    talk("unix socket by path", 'attempt("connect", lambda: socket.socket(1).connect("@UNIX@"))', UNIX),
    talk("unix socket by a relative path", 'attempt("to", lambda: socket.socket(1).connect(os.path.relpath("@UNIX@")))', UNIX),
    talk("unix datagrams by path", 'attempt("sendto", lambda: socket.socket(1, 2).sendto(b"x", "@UNIX_DGRAM@"))', UNIX),
    talk("unix socket by abstract name", 'attempt("connect", lambda: socket.socket(1).connect("\\0@ABSTRACT@"))', INET),
    talk("unix datagrams by abstract name",
         'attempt("sendto", lambda: socket.socket(1, 2).sendto(b"x", "\\0@ABSTRACT_DGRAM@"))', INET),
    talk("one of a datagram pair sends by path", """
pair = attempt("datagram pair", socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM)
for end in pair or ():
    attempt("sendto", end.sendto, b"x", "@UNIX_DGRAM@")
    attempt("sendmsg", end.sendmsg, [b"x"], [], 0, "@UNIX_DGRAM@")
""", UNIX),
    talk("one of a datagram pair connects", """
pair = attempt("datagram pair", socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM)
for end in pair or (): attempt("connect", lambda: (end.connect("@UNIX_DGRAM@"), end.send(b"x")))
""", UNIX),
    talk("one of a datagram pair sends by abstract name", """
pair = attempt("datagram pair", socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
for end in pair or (): attempt("sendto", end.sendto, b"x", "\\0@ABSTRACT_DGRAM@")
""", UNIX),
    talk("one of a stream pair reaches further", """
a, b = socket.socketpair()
for address in ("@UNIX@", "\\0@ABSTRACT@"):
    try: a.connect(address); print("ESCAPED: connected again")
    except OSError as error: print("refused:", error)
try: a.listen(); print("ESCAPED: listens")
except OSError as error: print("refused:", error)
""", UNIX),
    talk("pairs of other kinds", """
attempt("raw pair", socket.socketpair, socket.AF_UNIX, socket.SOCK_RAW)
attempt("raw pair by its flags", call, "socketpair", 1, 2 | 0o2000000, 0, (ctypes.c_int * 2)())
attempt("raw pair with high bits", call, "socketpair", 1, 2 | 1 << 32, 0, (ctypes.c_int * 2)())
attempt("TIPC pair", call, "socketpair", 30, 1, 0, (ctypes.c_int * 2)())
""", ANY_SOCKET),
    talk("netlink", """
attempt("netlink", socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, 0)
attempt("netlink to audit and events", socket.socket, socket.AF_NETLINK, socket.SOCK_DGRAM, 15)
""", ANY_SOCKET),
    talk("raw and packet sockets", """
attempt("raw", socket.socket, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
attempt("ping", socket.socket, socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
attempt("packet", socket.socket, socket.AF_PACKET, socket.SOCK_RAW, 0)
""", ANY_SOCKET),
    talk("sockets to the machine and the kernel", """
for family in (40, 38, 31, 29, 44, 9, 5, 16, 42):  # vsock, alg, bluetooth, can, xdp, x25, appletalk, netlink, qipcrtr
    for kind in (1, 2, 3, 5): attempt(f"family {family}", socket.socket, family, kind)
""", ANY_SOCKET),
    talk("listen", """
try: s = socket.socket(); s.bind(("0.0.0.0", 0)); s.listen(); print("ESCAPED: listens")
except OSError as error: print("refused:", error)
""", ANY_SOCKET),
    talk("listen on a path and an abstract name", """
for address in ("here", "\\0nanomle-escaped", ""):
    try: s = socket.socket(1); s.bind(address); s.listen(); print("ESCAPED: listens at", repr(address))
    except OSError as error: print("refused:", error)
""", ANY_SOCKET),
    talk("io_uring", 'attempt("io_uring_setup", call, "io_uring_setup", 4, ctypes.create_string_buffer(120))', ANY_SOCKET),
    talk("io_uring with a polling thread and without an array", """
for flags in (2, 1 << 16, 1 << 6):
    parameters = (ctypes.c_uint32 * 30)(0, 0, flags)
    attempt(f"io_uring_setup {flags}", call, "io_uring_setup", 8, parameters)
""", ANY_SOCKET),
]  # fmt: skip
