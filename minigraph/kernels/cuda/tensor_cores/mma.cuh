// What a kernel on tensor cores is made of: products of a warp and copies that pass no register (sm_80), and blocks that
// work as a cluster (sm_90). Tests without a GPU bring their own.
#ifdef __CUDACC__
__device__ __forceinline__ u32 shared_place(const void* p) { return u32(__cvta_generic_to_shared(p)); }
// c[16, 8] += a[16, 8] b[8, 8] of TF32 numbers; lane (g, t) = (lane / 4, lane % 4) has of a: rows g, g + 8 of column t,
// then of t + 4; of b: rows t, t + 4 of column g; of c: row g, columns 2 t, 2 t + 1, then row g + 8.
__device__ __forceinline__ void mma_k8(float (&c)[4], const u32* a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// 16 bytes, or zeros, on their way to shared memory.
template <class X>
__device__ __forceinline__ void copy_or_clear(unsigned char* tile, int place, const X* from, bool copied) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"(shared_place(tile) + place), "l"(from), "r"(copied ? 16 : 0) : "memory");
}
// A thread's copies since the last call are a group; all groups but the last PENDING are there.
__device__ __forceinline__ void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void wait_for_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
// 16 bytes to the same place in the shared memory of the block of this rank, in a cluster of BLOCKS.
template <int BLOCKS, class P> __device__ __forceinline__ void send(void* place, int rank, const P& v) {
    if constexpr (BLOCKS == 1) *(P*)place = v;
    else
        asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                     "st.shared::cluster.v4.f32 [there], {%2, %3, %4, %5};\n}"
                     ::"r"(shared_place(place)), "r"(rank), "f"(v.v[0]), "f"(v.v[1]), "f"(v.v[2]), "f"(v.v[3])
                     : "memory");
}
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
#endif
