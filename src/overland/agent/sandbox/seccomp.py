"""A small deny-list filter as classic BPF: what no agent's command needs and what kernels have been broken through.

Blocked calls fail with EPERM (clone3 with ENOSYS, so that libc falls back to clone). Only x86-64 and arm64 have tables;
elsewhere `program()` returns None and the capability record says so.
Source: linux/seccomp.h, linux/bpf_common.h and the kernel's syscall tables; policy as in Docker's default profile.
"""

from __future__ import annotations

import errno
import platform
import struct

# name -> (x86-64, arm64)
DENIED: dict[str, tuple[int, int]] = {
    "ptrace": (101, 117),
    "personality": (135, 92),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "acct": (163, 89),
    "settimeofday": (170, 170),
    "mount": (165, 40),
    "umount2": (166, 39),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "quotactl": (179, 60),
    "lookup_dcookie": (212, 18),
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "mbind": (237, 235),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "unshare": (272, 97),
    "perf_event_open": (298, 241),
    "fanotify_init": (300, 262),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "clock_adjtime": (305, 266),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "finit_module": (313, 273),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "pidfd_getfd": (438, 438),
    "mount_setattr": (442, 442),
}
ARCHES = {"x86_64": (0, 0xC000003E, 56), "aarch64": (1, 0xC00000B7, 220)}  # column, AUDIT_ARCH, clone's number
CLONE3 = 435
CLONE_NAMESPACES = 0x7E020080  # NEWNS NEWCGROUP NEWUTS NEWIPC NEWUSER NEWPID NEWNET, and NEWTIME (0x80)

LOAD, JEQ, JGE, JSET, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL = 0x7FFF0000, 0x80000000


def _deny(code: int) -> int:
    return 0x00050000 | code  # SECCOMP_RET_ERRNO


def program(machine: str | None = None) -> bytes | None:
    """The filter for this machine as an array of `struct sock_filter`, or None where there is no table."""
    column, arch, clone = ARCHES.get(machine or platform.machine(), (0, 0, 0))
    if not arch:
        return None
    eperm, enosys = _deny(errno.EPERM), _deny(errno.ENOSYS)
    code: list[tuple[int, int, int, int]] = [
        (LOAD, 0, 0, 4),  # seccomp_data.arch
        (JEQ, 1, 0, arch),
        (RETURN, 0, 0, KILL),  # another ABI would have other numbers
        (LOAD, 0, 0, 0),  # seccomp_data.nr
    ]
    if column == 0:
        code += [(JGE, 0, 1, 0x40000000), (RETURN, 0, 0, enosys)]  # x32
    for number in sorted(numbers[column] for numbers in DENIED.values()):
        code += [(JEQ, 0, 1, number), (RETURN, 0, 0, eperm)]
    code += [(JEQ, 0, 1, CLONE3), (RETURN, 0, 0, enosys)]
    code += [
        (JEQ, 0, 3, clone),
        (LOAD, 0, 0, 16),  # low half of the first argument: the flags (the signal sits in its lowest byte)
        (
            JSET,
            0,
            1,
            CLONE_NAMESPACES & ~0xFF,
        ),  # CLONE_NEWTIME shares the signal's bits in clone, so only unshare has it
        (RETURN, 0, 0, eperm),
        (RETURN, 0, 0, ALLOW),
    ]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)
