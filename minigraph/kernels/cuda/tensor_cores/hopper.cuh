// What Hopper adds: asynchronous products of a warpgroup (wgmma), copies of tiles by the tensor copy engine (TMA),
// and barriers in shared memory that count both threads and bytes (mbarrier). PTX ISA 8.0 and CUDA driver API.
struct alignas(64) TensorMap {
    u64 words[16];
};

__device__ __forceinline__ u32 shared_address(const void* p) { return u32(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ void barrier_init(u32 barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Until the phase of this parity has ended.
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(barrier), "r"(parity) : "memory");
}
// One box of a four-dimensional tensor into shared memory; elements outside the tensor become zeros.
__device__ __forceinline__ void load_box(u32 to, const TensorMap& map, u32 barrier, int x, int y, int z, int w) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
        ::"r"(to), "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
// The same into the shared memory of each block of the cluster whose bit is set, at the same place; each gets its bytes
// counted by its own barrier.
__device__ __forceinline__ void load_box_for(
    u32 to, const TensorMap& map, u32 barrier, int x, int y, int z, int w, unsigned short blocks) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;"
        ::"r"(to), "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "h"(blocks) : "memory");
}
// At the barrier that lies at this place in the block of this rank of the cluster, by a thread that has only read.
__device__ __forceinline__ void barrier_arrive_at(u32 barrier, int rank) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier), "r"(rank) : "memory");
}
// Barriers that were initialised are there for the copy engine and the other blocks of the cluster.
__device__ __forceinline__ void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// All threads of all blocks of the cluster.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// A matrix in shared memory whose rows of 128 bytes are swizzled (the copy engine's 128-byte mode), by its start
// address / 16, the distance between chunks of 64 columns (read where rows run along N) and between groups of 8 rows.
__device__ __forceinline__ u64 descriptor(u32 sixteenths, u32 leading, u32 stride) {
    u64 y;
    asm("mov.b64 %0, {%1, %2};" : "=l"(y) : "r"(sixteenths + (leading >> 4 << 16)), "r"((stride >> 4) | 1u << 30));
    return y;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// The compiler must not move accesses to accumulators over this.
template <int N> __device__ __forceinline__ void keep(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i])::"memory");
}
template <int N> __device__ __forceinline__ void keep(u32 (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(x[i])::"memory");
}
template <int REGISTERS> __device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
// Contiguous bytes, a multiple of 16, both addresses aligned to 16.
__device__ __forceinline__ void load_bytes(u32 to, const void* from, u32 barrier, u32 bytes) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
__device__ __forceinline__ void store_bytes(void* to, u32 from, u32 bytes) {
    asm volatile("fence.proxy.async;\ncp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}
// The same, added to float32 numbers.
__device__ __forceinline__ void add_bytes(void* to, u32 from, u32 bytes) {
    asm volatile("fence.proxy.async;\ncp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}
// A box of rows of 128 swizzled bytes from shared memory, after async_fence(); what lies outside the tensor is left out.
__device__ __forceinline__ void store_box(const TensorMap& map, u32 from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %4}], [%1];\n"
                 "cp.async.bulk.commit_group;" ::"l"(&map), "r"(from), "r"(x), "r"(y), "r"(0) : "memory");
}
// Until all but the last PENDING of this thread's stores and additions have read shared memory; until all are done.
template <int PENDING = 0> __device__ __forceinline__ void bulk_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ void bulk_done() {
    asm volatile("cp.async.bulk.wait_group 0;\nfence.proxy.async;" ::: "memory");
}
// What this thread wrote to shared memory is there for the copy engine and wgmma, once a barrier is passed.
__device__ __forceinline__ void async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void load_quad(u32 (&x)[4], u32 from) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from) : "memory");
}
__device__ __forceinline__ void load_two(u32& x, u32& y, u32 from) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x), "=r"(y) : "r"(from) : "memory");
}
__device__ __forceinline__ void store_quad(u32 to, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
// Four matrices of 8 x 8 16-bit numbers, as accumulators lie in registers; lane l gives the address of row l % 8 of l / 8.
__device__ __forceinline__ void store_matrices(u32 to, const u32 (&x)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
}
__device__ __forceinline__ void load_matrices(u32 (&x)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from) : "memory");
}
// 16 bytes to global memory by one instruction; the compiler makes four of one where registers are chosen by lanes.
__device__ __forceinline__ void store_global(void* to, const u32 (&x)[4]) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 ::"l"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
}
// What other blocks wrote to global memory in this launch.
__device__ __forceinline__ float4 load_from_others(const float4* from) {
    float4 x;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(from) : "memory");
    return x;
}
__device__ __forceinline__ u32 load_word(u32 from) {
    u32 x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
    return x;
}
__device__ __forceinline__ void load_pair(float (&x)[2], u32 from) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x[0]), "=f"(x[1]) : "r"(from));
}
