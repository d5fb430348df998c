"""Five A2A agents in five processes that hand work to each other, and when all of it has ended.

    make demo

One of them takes no part in the mesh. They are killed, restarted, told to end and cancelled while they
work, and each verdict is compared with what they themselves have written down.
"""
