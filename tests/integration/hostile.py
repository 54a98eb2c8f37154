"""A hostile agent: tries what it must not be able to do, and says on stderr
how each attempt went, one JSON object a line. Standard library only.

usage: hostile.py TOPIC [ARGUMENT…]
"""

import ctypes
import errno
import json
import os
import socket
import sys

libc = ctypes.CDLL(None, use_errno=True)
X86 = os.uname().machine == "x86_64"


def syscall(number, *arguments):
    arguments = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result == -1:
        raise OSError(ctypes.get_errno(), "")
    return result


def attempt(name, action, *arguments):
    try:
        outcome = action(*arguments)
        word = "ok" if outcome is None or not isinstance(outcome, str) else outcome
    except OSError as error:
        word = errno.errorcode.get(error.errno, str(error))
    except Exception as error:  # a missing function, say
        word = type(error).__name__
    print(json.dumps({"try": name, "got": word}), file=sys.stderr, flush=True)


def reads(path):
    with open(path, "rb") as file:
        file.read(1)


def writes(path):
    with open(path, "ab") as file:
        file.write(b"x")


def lists(path):
    return "empty" if not os.listdir(path) else "ok"


def connects(path):
    with socket.socket(socket.AF_UNIX) as unix:
        unix.connect(path)


def watches(path):
    descriptor = libc.inotify_init1(0)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "")
    if libc.inotify_add_watch(descriptor, path.encode(), 0xFFF) < 0:
        raise OSError(ctypes.get_errno(), "")


def files(workspace, state, policy, unix):
    """Everything in the workspace, the state directory and the policy."""
    file = workspace + "/file.txt"
    attempt("read", reads, file)
    attempt("write", writes, file)
    attempt("create", writes, workspace + "/new.txt")
    attempt("create in the current directory", writes, "new.txt")
    attempt("list", lists, workspace)
    attempt("stat", os.stat, file)
    attempt("lstat", os.lstat, file)
    attempt("access", lambda: None if os.access(file, os.F_OK) else "ENOENT")
    attempt("chmod", os.chmod, file, 0o777)
    attempt("chown", os.chown, file, os.getuid(), os.getgid())
    attempt("utime", os.utime, file)
    attempt("link", os.link, file, "/tmp/link" if os.path.isdir("/tmp") else "link")
    attempt("symlink", os.symlink, "/etc/passwd", workspace + "/planted")
    attempt("mkdir", os.mkdir, workspace + "/planted")
    attempt("mkfifo", os.mkfifo, workspace + "/fifo")
    attempt("setxattr", os.setxattr, file, "user.x", b"1")
    attempt("getxattr", os.getxattr, file, "user.kept")
    attempt("listxattr", lambda: "ok" if os.listxattr(file) else "EOPNOTSUPP")
    attempt("inotify", watches, file)
    attempt("statvfs", os.statvfs, file)
    attempt("open a path handle", lambda: os.close(os.open(file, os.O_PATH)))
    attempt("list the state", lists, state)
    attempt("write to the state", writes, state + "/planted")
    attempt("read the policy", reads, policy)
    attempt("write the policy", writes, policy)
    attempt("connect to a socket", connects, unix)
    attempt("connect to an abstract socket", connects, "\0" + os.path.basename(unix))
    for process in ["self", "1", "2", str(os.getppid()), "thread-self"]:
        for way in ["root", "cwd"]:
            attempt(f"read through /proc/{process}/{way}", reads, f"/proc/{process}/{way}{file}")
    attempt("read through a link", through_link, file)
    attempt("truncate", os.truncate, file, 0)
    attempt("rename", os.rename, file, workspace + "/other.txt")
    attempt("unlink", os.unlink, workspace + "/other.txt")
    attempt("unlink the file", os.unlink, file)


def through_link(file):
    link = os.environ["HOME"] + "/link"
    if os.path.lexists(link):
        os.unlink(link)
    os.symlink(file, link)
    reads(link)


def descriptors():
    """What was left open by the process that started this one."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(f"{name}={os.readlink('/proc/self/fd/' + name)}")
        except OSError:
            pass  # the listing's own
    kinds = sorted(f.split("=")[1].split(":")[0] for f in found)
    print(json.dumps({"try": "descriptors", "got": ",".join(kinds)}), file=sys.stderr)


def powers():
    """What is for the privileged, or has been a way out."""
    attempt("setuid", os.setuid, 0)
    attempt("setgid", os.setgid, 0)
    attempt("chroot", os.chroot, "/tmp")
    attempt("mount", lambda: check(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)))
    attempt("umount", lambda: check(libc.umount2(b"/tmp", 2)))
    attempt("unshare", lambda: check(libc.unshare(0x10000000)))
    attempt("unshare nothing", lambda: check(libc.unshare(0)))
    attempt("setns", setns)
    attempt("ptrace", lambda: check(libc.ptrace(16, os.getppid(), 0, 0)))
    attempt("ptrace itself", lambda: check(libc.ptrace(0, 0, 0, 0)))
    # A socket to which nobody writes into a pipe, which stays locked meanwhile.
    for name, number in {"splice": 275, "sendfile": 40, "tee": 276, "vmsplice": 278}.items():
        number = number if X86 else {275: 76, 40: 71, 276: 77, 278: 75}[number]
        attempt(name, lambda: syscall(number, -1, -1, 0, 0, 0, 0))
    # Its contexts are counted for the whole machine, and one agent took them all.
    attempt("io_setup", lambda: syscall(206 if X86 else 0, 1, ctypes.byref(ctypes.c_ulong())))
    attempt("io_uring", lambda: syscall(425, 4, ctypes.create_string_buffer(256)))
    attempt("clone3", lambda: syscall(435, ctypes.create_string_buffer(88), 88))
    attempt("clone a user namespace", clone, 0x10000000 | 17)
    attempt("keyctl", lambda: syscall(250 if X86 else 219, 0, -3, 0))
    attempt("add_key", lambda: syscall(248 if X86 else 217, b"user", b"n", b"v", 1, -3))
    attempt("userfaultfd", lambda: syscall(323 if X86 else 282, 0))
    attempt("bpf", lambda: syscall(321 if X86 else 280, 0, ctypes.create_string_buffer(128), 128))
    attempt("perf", lambda: syscall(298 if X86 else 241, ctypes.create_string_buffer(128), 0, -1, -1, 0))
    attempt("process_vm_readv", lambda: syscall(310 if X86 else 270, os.getpid(), 0, 0, 0, 0, 0))
    attempt("pidfd_getfd", lambda: syscall(438, os.pidfd_open(os.getpid()), 0, 0))
    attempt("name_to_handle_at", handle)
    attempt("open_tree", lambda: syscall(428, -100, b"/tmp", 1))
    attempt("fsopen", lambda: syscall(430, b"tmpfs", 0))
    attempt("fanotify", lambda: syscall(300 if X86 else 262, 0, 0))
    attempt("personality", lambda: check(libc.personality(0x0400000)))
    attempt("a number from the future", lambda: syscall(500))
    if X86:
        attempt("x32 numbers", lambda: syscall(0x40000000 | 39))
        attempt("modify_ldt", lambda: syscall(154, 0, 0, 0))
    attempt("kill everybody's init", os.kill, 1, 9)
    attempt("memory of the init", reads, "/proc/1/mem")
    attempt("environment of the init", reads, "/proc/1/environ")
    attempt("descriptors of the init", lists, "/proc/1/fd")
    attempt("a core pattern", writes, "/proc/sys/kernel/core_pattern")
    attempt("a device", lambda: os.mknod(os.environ["TMPDIR"] + "/disk", 0o060600, os.makedev(254, 0)))
    attempt("the terminal", reads, "/dev/tty")
    caps = [l for l in open("/proc/self/status") if l.startswith(("CapPrm", "CapBnd", "NoNewPrivs"))]
    attempt("capabilities", lambda: " ".join(line.split()[1].lstrip("0") or "0" for line in caps))


def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")


def setns():
    with open("/proc/self/ns/uts") as namespace:
        check(libc.setns(namespace.fileno(), 0))


def handle():
    buffer = ctypes.create_string_buffer(b"\x80\0\0\0" + bytes(132))
    mount = ctypes.c_int()
    syscall(303 if X86 else 264, -100, b"/tmp", buffer, ctypes.byref(mount), 0)


def clone(flags):
    pid = syscall(56 if X86 else 220, flags, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def network(allowed, denied):
    """Ports on this machine, one of which may be connected to."""
    def tcp(port):
        with socket.create_connection(("127.0.0.1", int(port)), timeout=5):
            pass

    def opened(family, kind, protocol=0):
        socket.socket(family, kind, protocol).close()

    def fast_open(port, send):
        with socket.socket() as client:
            send(client, ("127.0.0.1", int(port)))

    attempt("the allowed port", tcp, allowed)
    attempt("the denied port", tcp, denied)
    attempt("the denied port over IPv6", lambda: socket.create_connection(("::1", int(denied)), timeout=5))
    attempt("UDP", opened, socket.AF_INET, socket.SOCK_DGRAM)
    attempt("UDP over IPv6", opened, socket.AF_INET6, socket.SOCK_DGRAM)
    attempt("MPTCP", opened, socket.AF_INET, socket.SOCK_STREAM, 262)
    attempt("SMC", opened, socket.AF_INET, socket.SOCK_STREAM, 256)
    attempt("SMC as a family", opened, 43, socket.SOCK_STREAM)
    attempt("SCTP", opened, socket.AF_INET, socket.SOCK_STREAM, 132)
    attempt("SCTP in packets", opened, socket.AF_INET, socket.SOCK_SEQPACKET, 132)
    attempt("ping", opened, socket.AF_INET, socket.SOCK_DGRAM, 1)
    attempt("UDP-Lite", opened, socket.AF_INET, socket.SOCK_DGRAM, 136)
    attempt("raw", opened, socket.AF_INET, socket.SOCK_RAW, 1)
    attempt("packet", opened, socket.AF_PACKET, socket.SOCK_RAW)
    attempt("vsock", opened, socket.AF_VSOCK, socket.SOCK_STREAM)
    attempt("bluetooth", opened, 31, socket.SOCK_RAW)
    attempt("crypto", opened, 38, socket.SOCK_SEQPACKET)
    attempt("netlink audit", opened, 16, socket.SOCK_RAW, 9)
    attempt("sendto with fast open", fast_open, denied, lambda s, a: s.sendto(b"x", 0x20000000, a))
    attempt("sendmsg with fast open", fast_open, denied, lambda s, a: s.sendmsg([b"x"], [], 0x20000000, a))
    attempt("sendmmsg with fast open", fast_open, denied, lambda s, a: syscall(307 if X86 else 269, s.fileno(), 0, 0, 0x20000000))
    attempt("fast open on connect", fast_open, denied, lambda s, a: s.setsockopt(6, 30, 1))
    attempt("an upper layer", fast_open, denied, lambda s, a: s.setsockopt(6, 31, b"tls"))
    attempt("listen", listens)


def listens():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()


def listening(port, more):
    """Listens on a port, is connected to by a child, and waits until input ends."""
    def serves_itself(address, family=socket.AF_INET):
        with socket.socket(family) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(address)
            server.listen()
            child = os.fork()
            if child == 0:
                with socket.create_connection(server.getsockname()[:2], timeout=5) as client:
                    client.sendall(b"x")
                os._exit(0)
            with server.accept()[0] as connection:
                if connection.recv(1) != b"x" or os.waitpid(child, 0)[1] != 0:
                    raise OSError(errno.EIO, "")

    attempt("the named port", serves_itself, ("127.0.0.1", int(port)))
    attempt("another port", serves_itself, ("127.0.0.1", int(more)))
    attempt("a free port", serves_itself, ("127.0.0.1", 0))
    attempt("every interface", serves_itself, ("0.0.0.0", int(port)))
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        attempt("wait", lambda: (server.bind(("0.0.0.0", int(port))), server.listen()) and None)
        sys.stdin.read()


def terminals(operators):
    """Pseudo-terminals of the agent's own, and the terminal of the process that started it."""
    import fcntl
    import pty
    import struct
    import subprocess
    import termios

    attempt("list", lambda: ",".join(sorted(os.listdir("/dev/pts"))))
    def opens(path):
        os.close(os.open(path, os.O_RDWR | os.O_NOCTTY))

    attempt("the operator's terminal", opens, operators)
    attempt("the controlling terminal", opens, "/dev/tty")
    first, second = os.openpty()
    attempt("name", os.ttyname, second)
    size = struct.pack("HHHH", 12, 34, 0, 0)
    attempt("set the size", lambda: fcntl.ioctl(first, termios.TIOCSWINSZ, size) and None)
    attempt("get the size", lambda: str(tuple(os.get_terminal_size(second))))
    attempt("type into it", lambda: fcntl.ioctl(second, termios.TIOCSTI, b"x"))
    attempt("use the console", lambda: fcntl.ioctl(second, 0x541C, b"\0"))
    attempt("change the line discipline", lambda: fcntl.ioctl(second, termios.TIOCSETD, struct.pack("i", 0)))
    # As a shell is started: a session of its own, with this as its terminal.
    attempt("a shell", lambda: subprocess.run(
        [sys.executable, "-c", "import pty; pty.spawn(['/bin/sh', '-c', 'tty; : </dev/tty && echo reached'])"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE).stdout.decode().replace("\r\n", ","))


def memory(file):
    """A program in memory is no way out either."""
    program = os.memfd_create("cat")
    with open("/bin/cat", "rb") as cat:
        os.write(program, cat.read())
    code = os.spawnv(os.P_WAIT, f"/proc/self/fd/{program}", ["cat", file])
    print(json.dumps({"try": "a program in memory", "got": str(code)}), file=sys.stderr)


def strangers():
    """Other processes of the user, where they have numbers; and oneself."""
    import resource
    pid, core = os.getppid(), resource.RLIMIT_CORE
    nice = lambda who: os.setpriority(os.PRIO_PROCESS, who, os.getpriority(os.PRIO_PROCESS, who))
    attempt("limits", lambda: resource.prlimit(pid, core, resource.getrlimit(core)))
    attempt("priority", nice, pid)
    attempt("affinity", lambda: os.sched_setaffinity(pid, os.sched_getaffinity(pid)))
    attempt("shared memory", shares)
    attempt("a queue", queues)
    attempt("a datagram pair", socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM)
    attempt("a raw pair", socket.socketpair, socket.AF_UNIX, socket.SOCK_RAW)
    attempt("own limits", lambda: resource.prlimit(0, core, resource.getrlimit(core)))
    attempt("own priority", nice, 0)
    attempt("own affinity", lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)))
    attempt("own stream pair", socket.socketpair)
    attempt("own packet pair", socket.socketpair, socket.AF_UNIX, socket.SOCK_SEQPACKET)


def proc():
    """What /proc tells of a process outside, and of oneself and a child."""
    import subprocess
    pid = os.environ["STRANGER"]
    for name in ["environ", "maps", "mem", "auxv", "stack"]:
        attempt(name, reads, f"/proc/{pid}/{name}")
    attempt("map_files", lists, f"/proc/{pid}/map_files")
    attempt("open fd/0", reads, f"/proc/{pid}/task/{pid}/fd/0")
    for name in ["root", "cwd", "exe", "fd/0"]:
        attempt(name, os.readlink, f"/proc/{pid}/{name}")
    attempt("a file through root", reads, f"/proc/{pid}/root/etc/shadow")
    attempt("write oom_score_adj", writes, f"/proc/{pid}/oom_score_adj")
    for name in ["cgroup", "maps", "environ", "mountinfo", "status"]:
        attempt("own " + name, reads, "/proc/self/" + name)
    attempt("own fd", lists, "/proc/self/fd")
    attempt("own child", lambda: subprocess.check_call(["/bin/cat", "/proc/self/cgroup"], stdout=2))


def shares():
    segment = libc.shmget(0, 4096, 0o600)
    check(segment)
    check(libc.shmctl(segment, 0, None))


def queues():
    name = f"/portcullis-{os.getpid()}".encode()
    check(libc.mq_open(name, os.O_CREAT | os.O_RDWR, 0o600, None))
    check(libc.mq_unlink(name))


def owners(directory):
    """Programs that run as their owner or group, left on the host."""
    file = directory + "/file"
    writes(file)
    attempt("a plain mode", os.chmod, file, 0o755)
    with open(file) as opened:
        attempt("fchmod", os.fchmod, opened.fileno(), 0o4755)
    attempt("chmod", os.chmod, file, 0o4755)
    attempt("chmod for the group", os.chmod, file, 0o2755)
    made = os.O_CREAT | os.O_WRONLY
    attempt("open", lambda: os.close(os.open(directory + "/made", made, 0o4755)))
    attempt("open without a name", lambda: os.close(os.open(directory, os.O_TMPFILE | os.O_WRONLY, 0o4755)))
    attempt("mknod", os.mknod, directory + "/node", 0o104755)
    how = (ctypes.c_uint64 * 3)(made, 0o4755, 0)
    attempt("openat2", lambda: os.close(syscall(437, -100, (directory + "/two").encode(), how, 24)))
    attempt("mkdir", os.mkdir, directory + "/inner", 0o6755)


def flags(file):
    """Flags of a file that is open for reading, and what keeps others from it."""
    import fcntl
    import struct

    def ioctl(opened, request, argument):
        fcntl.ioctl(opened, request, argument)

    with open(file) as opened:
        attempt("flags", lambda: ioctl(opened, 0x40086602, struct.pack("l", 0x80)))
        attempt("more flags", lambda: ioctl(opened, 0x401C5820, struct.pack("IIIII8x", 0x40, 0, 0, 0, 0)))
        attempt("lease", lambda: fcntl.fcntl(opened, fcntl.F_SETLEASE, fcntl.F_RDLCK) and None)


def forks(stop, most, _mark):
    """Processes that make two and end, within a limit, until there is a file."""
    import resource
    import time

    resource.setrlimit(resource.RLIMIT_NPROC, (int(most),) * 2)

    def fork():
        while not os.path.exists(stop):
            try:
                return os.fork()
            except BlockingIOError:
                time.sleep(0.0002)
        os._exit(0)

    if os.fork() == 0:
        for stream in range(3):
            os.close(stream)
        while True:
            if fork() and fork():
                os._exit(0)
    time.sleep(1)
    sys.exit(3)


def works():
    """What an agent needs."""
    home, temporary = os.environ["HOME"], os.environ["TMPDIR"]
    attempt("write to HOME", writes, home + "/file")
    attempt("write to TMPDIR", writes, temporary + "/file")
    attempt("run a shell", lambda: None if os.system("/bin/true") == 0 else "failed")
    attempt("a thread", lambda: __import__("threading").Thread(target=print).start())
    attempt("a socket pair", lambda: [s.close() for s in socket.socketpair()] and None)
    attempt("a server in the sandbox", serves, temporary + "/socket")
    attempt("an event loop", lambda: __import__("asyncio").run(__import__("asyncio").sleep(0)))
    attempt("a process pool", pool)
    attempt("/dev/null", writes, "/dev/null")
    attempt("/dev/stderr", writes, "/dev/stderr")
    attempt("/proc", reads, "/proc/self/status")
    attempt("who am I", lambda: __import__("pwd").getpwuid(os.getuid()).pw_name)
    attempt("where am I", os.getcwd)
    attempt("TLS certificates", lambda: lists("/etc/ssl/certs"))


def serves(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        connects(path)


def pool():
    with __import__("multiprocessing").Pool(2) as workers:
        if workers.map(abs, [-1, -2]) != [1, 2]:
            raise OSError(errno.EIO, "")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
