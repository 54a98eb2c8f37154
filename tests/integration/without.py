"""Runs a program where some system calls are not there: `without.py NUMBERS PROGRAM…`.

The numbers, with commas between them, are the same on every architecture from
424 on. A filter answers them with ENOSYS, as an older kernel would. With
`done:` before the numbers it answers that they succeeded, and does nothing.
"""

import ctypes
import os
import struct
import sys

PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
ALLOW, SUCCESS, ENOSYS = 0x7FFF0000, 0x00050000, 0x00050000 | 38


def step(code, yes, no, value):
    return struct.pack("HBBI", code, yes, no, value)


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


pretend, _, numbers = sys.argv[1].rpartition(":")
answer = SUCCESS if pretend == "done" else ENOSYS
numbers = [int(number) for number in numbers.split(",")]
steps = [step(0x20, 0, 0, 0)]
steps += [step(0x15, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
steps += [step(0x06, 0, 0, ALLOW), step(0x06, 0, 0, answer)]
code = ctypes.create_string_buffer(b"".join(steps))
program = Program(len(steps), ctypes.cast(code, ctypes.c_void_p))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0
os.execvp(sys.argv[2], sys.argv[2:])
