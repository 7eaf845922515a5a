"""The numbers of system calls, by architecture. Those from 424 on are the same everywhere."""

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""What the kernel calls them when it asks a filter."""

_EVERYWHERE = {
    **{"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427},
    **{"open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433},
    **{"clone3": 435, "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443},
    **{"open_tree_attr": 467},
}

NUMBERS = {
    "x86_64": {
        **_EVERYWHERE,
        **{"ioctl": 16, "shmget": 29, "shmat": 30, "shmctl": 31, "socket": 41, "sendto": 44, "sendmsg": 46},
        **{"listen": 50, "socketpair": 53, "setsockopt": 54, "clone": 56, "semget": 64, "semop": 65, "semctl": 66},
        **{"msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "ptrace": 101, "syslog": 103, "pivot_root": 155},
        **{"chroot": 161, "acct": 163, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169},
        **{"init_module": 175, "delete_module": 176, "quotactl": 179, "semtimedop": 220, "mq_open": 240},
        **{"mq_unlink": 241, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272},
        **{"perf_event_open": 298, "fanotify_init": 300, "open_by_handle_at": 304, "sendmmsg": 307, "setns": 308},
        **{"process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313},
        **{"kexec_file_load": 320, "bpf": 321, "userfaultfd": 323},
    },
    "aarch64": {
        **_EVERYWHERE,
        **{"ioctl": 29, "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "quotactl": 60, "acct": 89},
        **{"unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106, "syslog": 116, "ptrace": 117},
        **{"reboot": 142, "mq_open": 180, "mq_unlink": 181, "msgget": 186, "msgctl": 187, "msgrcv": 188},
        **{"msgsnd": 189, "semget": 190, "semctl": 191, "semtimedop": 192, "semop": 193, "shmget": 194},
        **{"shmctl": 195, "shmat": 196, "socket": 198, "socketpair": 199, "listen": 201, "sendto": 206},
        **{"setsockopt": 208, "sendmsg": 211, "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220},
        **{"swapon": 224, "swapoff": 225, "perf_event_open": 241, "fanotify_init": 262, "open_by_handle_at": 265},
        **{"setns": 268, "sendmmsg": 269, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272},
        **{"finit_module": 273, "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294},
    },
}
