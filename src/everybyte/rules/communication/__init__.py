"""What communication needs beside torch's allocator: communicators of each rank and NCCL's buffers."""
