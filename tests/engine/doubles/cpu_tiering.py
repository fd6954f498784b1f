"""vLLM's TieringOffloadingSpec on a CPU engine: vLLM's own worker copies with CUDA, this one with memcpy."""

import time

from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class CopyWorker(OffloadingWorker):
    """Copies at once. A chunk is the pages of all tensors in turn, `blocks_per_chunk` of each."""

    def __init__(self, caches, region, blocks_per_chunk):
        self.caches, self.per_chunk, self.done = caches, blocks_per_chunk, []
        self.pool = [
            region.create_next_worker_view(tensor.page_size_bytes * blocks_per_chunk)
            for tensor in caches.tensors
        ]

    def places(self, blocks, chunks):
        """(page of the engine, page of the pool) of every tensor of every block, in the order of the job."""
        blocks_left, chunk_ids, first = list(blocks.block_ids), list(chunks.chunk_ids), 0
        for refs, count, start in zip(
            self.caches.group_data_refs, blocks.group_sizes, blocks.block_indices, strict=True
        ):
            offset = start % self.per_chunk
            for at in range(count):
                block, (chunk, inside) = blocks_left.pop(0), divmod(offset + at, self.per_chunk)
                for index in {ref.tensor_idx for ref in refs}:
                    size = self.caches.tensors[index].page_size_bytes
                    row = self.pool[index][int(chunk_ids[first + chunk])]
                    yield (
                        self.caches.tensors[index].tensor[int(block)],
                        row[inside * size : (inside + 1) * size],
                    )
            if count:
                first += -(-(offset + count) // self.per_chunk)

    def _finish(self, job_id, moved, begun):
        self.done.append(TransferResult(job_id, True, moved, time.perf_counter() - begun))
        return True

    def submit_store(self, job_id, src_spec, dst_spec):
        begun, moved = time.perf_counter(), 0
        for page, place in self.places(src_spec, dst_spec):
            place.copy_(page)
            moved += page.numel()
        return self._finish(job_id, moved, begun)

    def submit_load(self, job_id, src_spec, dst_spec):
        begun, moved = time.perf_counter(), 0
        for page, place in self.places(dst_spec, src_spec):
            page.copy_(place)
            moved += page.numel()
        return self._finish(job_id, moved, begun)

    def get_finished(self):
        done, self.done = self.done, []
        return done

    def wait(self, job_ids):
        pass


class CpuTieringSpec(TieringOffloadingSpec):
    def get_worker(self, kv_caches):
        if not self._worker:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = CopyWorker(kv_caches, region, self.blocks_per_chunk)
        return self._worker
