# SPDX-License-Identifier: Apache-2.0
"""pyverbs_traffic.py describe|loop|wrong|spawn|fork_exec, or server|client PORT: traffic over RC with pyverbs.

Every mode ends with an exception, and so with an exit code that is not 0, if anything is not as it
should be.
"""
import json
import multiprocessing
import os
import socket
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AHAttr
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import RecvWR, SGE, SendWR

SIZE = 65536
ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ


class End:
    """A context of its own with one queue pair and one region."""

    def __init__(self):
        self.context = Context(name=get_device_list()[0].name.decode())
        self.pd = PD(self.context)
        self.channel = CompChannel(self.context)
        self.cq = CQ(self.context, 64, None, self.channel, 0)
        self.mr = MR(self.pd, SIZE, ACCESS)
        cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=2, max_recv_sge=2)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap))
        self.lid = self.context.query_port(1).lid

    def address(self):
        return {"lid": self.lid, "qp": self.qp.qp_num, "buffer": self.mr.buf, "rkey": self.mr.rkey}

    def connect(self, peer):
        self.peer = peer
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = ACCESS
        attr.dest_qp_num = peer["qp"]
        attr.path_mtu = e.IBV_MTU_1024
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 12
        attr.ah_attr = AHAttr(dlid=peer["lid"], port_num=1, is_global=0)
        self.qp.to_rts(attr)

    def wait(self, opcode):
        until = time.monotonic() + 20
        while time.monotonic() < until:
            count, completions = self.cq.poll()
            if count == 1:
                assert completions[0].status == e.IBV_WC_SUCCESS, completions[0]
                assert completions[0].opcode == opcode, completions[0]
                return completions[0]
        raise TimeoutError(f"no completion of {opcode}")

    def receive(self, length):
        self.qp.post_recv(RecvWR(num_sge=1, sg=[SGE(self.mr.buf, length, self.mr.lkey)]))

    def post(self, opcode, length, offset=0):
        wr = SendWR(num_sge=1, sg=[SGE(self.mr.buf + offset, length, self.mr.lkey)], opcode=opcode)
        wr.set_wr_rdma(self.peer["rkey"], self.peer["buffer"] + offset)
        self.qp.post_send(wr)


def describe():
    device = get_device_list()[0]
    print(device)
    assert device.name.decode() == "weir0"
    with Context(name="weir0") as context:
        attr = context.query_device()
        port = context.query_port(1)
        print(attr, port, context.query_gid(1, 0))
        assert attr.phys_port_cnt == 1
        assert port.state == e.IBV_PORT_ACTIVE
        assert port.lid > 0
        assert str(context.query_gid(1, 0)).startswith("fe80:")
        assert context.query_pkey(1, 0) & 0x7fff == 0x7fff
        with PD(context) as pd, MR(pd, 10000, ACCESS) as mr:
            mr.write("words", 5)
            assert mr.read(5, 0) == b"words"
            assert mr.lkey != 0
        with PD(context) as pd, SRQ(pd, SrqInitAttr(SrqAttr(max_wr=100))) as srq:
            assert srq.query().max_wr >= 100


def traffic(one, other):
    """`one` sends, writes and reads; `other` is what it finds."""
    other.receive(SIZE)
    one.mr.write("a" * 1000, 1000)
    one.post(e.IBV_WR_SEND, 1000)
    one.wait(e.IBV_WC_SEND)
    assert other.wait(e.IBV_WC_RECV).byte_len == 1000
    assert other.mr.read(1000, 0) == b"a" * 1000
    one.mr.write("b" * 30000, 30000, 2000)
    one.post(e.IBV_WR_RDMA_WRITE, 30000, 2000)
    one.wait(e.IBV_WC_RDMA_WRITE)
    assert other.mr.read(30000, 2000) == b"b" * 30000
    other.mr.write("c" * 5000, 5000, 40000)
    one.post(e.IBV_WR_RDMA_READ, 5000, 40000)
    one.wait(e.IBV_WC_RDMA_READ)
    assert one.mr.read(5000, 40000) == b"c" * 5000


def loop():
    one, other = End(), End()
    one.connect(other.address())
    other.connect(one.address())
    for _ in range(10):
        traffic(one, other)
        traffic(other, one)
    other.cq.req_notify()
    other.receive(100)
    one.post(e.IBV_WR_SEND, 100)
    other.channel.get_cq_event(other.cq)
    other.cq.ack_events(1)
    other.wait(e.IBV_WC_RECV)
    one.wait(e.IBV_WC_SEND)
    # A completion that is there already, of which nobody was told, is told to who asks now.
    other.receive(100)
    one.post(e.IBV_WR_SEND, 100)
    one.wait(e.IBV_WC_SEND)
    other.cq.req_notify()
    other.channel.get_cq_event(other.cq)
    other.cq.ack_events(1)
    other.wait(e.IBV_WC_RECV)


def between(connection, serves):
    end = End()
    lines = connection.makefile("r")

    def say(what):
        connection.sendall(json.dumps(what).encode() + b"\n")
        return json.loads(lines.readline())

    end.connect(say(end.address()))
    end.receive(SIZE)
    say("ready")
    for number in range(50):
        if serves:
            found = end.wait(e.IBV_WC_RECV)
            assert found.byte_len == 100 + number
            assert end.mr.read(found.byte_len, 0) == bytes([65 + number % 26]) * found.byte_len
            end.receive(SIZE)
        else:
            text = chr(65 + number % 26) * (100 + number)
            end.mr.write(text, len(text))
            end.post(e.IBV_WR_SEND, len(text))
            end.wait(e.IBV_WC_SEND)
        say("next")


def server(port):
    listener = socket.create_server(("127.0.0.1", int(port)))
    between(listener.accept()[0], True)


def client(port):
    between(socket.create_connection(("127.0.0.1", int(port))), False)


def wrong():
    def refused(call):
        try:
            call()
        except (PyverbsRDMAError, PyverbsError) as error:
            print("refused:", error)
        else:
            raise AssertionError("not refused")

    refused(lambda: Context(name="mlx5_0"))
    with Context(name="weir0") as context, PD(context) as pd:
        refused(lambda: context.query_port(9))
        refused(lambda: MR(pd, 100, e.IBV_ACCESS_REMOTE_WRITE))
        refused(lambda: CQ(context, -1, None, None, 0))
        cq = CQ(context, 8, None, None, 0)
        cap = QPCap(max_send_wr=10**7, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        refused(lambda: QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap)))


def spawn():
    """Children of multiprocessing, while the parent has its own device open."""
    one, other = End(), End()
    one.connect(other.address())
    other.connect(one.address())
    method = multiprocessing.get_context("spawn")
    children = [method.Process(target=loop) for _ in range(4)]
    for child in children:
        child.start()
    traffic(one, other)
    for child in children:
        child.join(50)
        assert child.exitcode == 0, child.exitcode
    traffic(other, one)


def fork_exec():
    """A child that becomes another verbs program, while the parent goes on."""
    one, other = End(), End()
    one.connect(other.address())
    other.connect(one.address())
    traffic(one, other)
    child = os.fork()
    if child == 0:
        os.execvp(sys.executable, [sys.executable, __file__, "loop"])
    traffic(other, one)
    assert os.waitpid(child, 0)[1] == 0
    traffic(one, other)


if __name__ == "__main__":
    {"describe": describe, "loop": loop, "server": server, "client": client, "wrong": wrong,
     "spawn": spawn, "fork_exec": fork_exec}[sys.argv[1]](*sys.argv[2:])
