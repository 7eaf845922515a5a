"""In a network of our own there is at first not even loopback: switch it on, and become another program."""

import fcntl
import os
import socket
import struct
import sys

SIOCSIFFLAGS = 0x8914
UP_AND_RUNNING = 0x1 | 0x40


def switch_on() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as anything:
        fcntl.ioctl(anything, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", UP_AND_RUNNING))


if __name__ == "__main__":
    switch_on()
    os.execv(sys.argv[1], sys.argv[1:])
