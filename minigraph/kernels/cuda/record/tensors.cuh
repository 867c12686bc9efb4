// Lists of tensors in one launch. A block of 256 threads works on CHUNK elements of one tensor; it finds
// them by one of these ways, all of which give
//   tensor   its number            start   its first element        left   elements from there to its end
//   ADDRESS(column)                where column `column` of the tensor lies
// WAY 0: a table in device memory, and for each block the number of its tensor.
// WAY 1: a struct by value, WIDTH tensors at most; the block searches its tensor among their first blocks.
// WAY 2: arenas with one base for each column, in which tensors have the same places, multiples of CHUNK.
// GUARD: nothing is written where this run has a fault; `last`: no kernel that comes later may report one.
#ifdef GUARD
#define FAULT fault
#define AND_FAULT , Fault *fault, i64 last
#define ASK ask(fault)
#define SETTLE if (last) settle(fault, answer);
#else
#define FAULT nullptr
#define AND_FAULT
#define ASK Answer{1, 0, 0}
#define SETTLE
#endif
#if WAY == 0
#define TENSORS const u64 *addresses, const i64 *sizes, const u32 *firsts, const u32 *owners, i64 count
#define FIND                                                        \
    const i64 tensor = owners[blockIdx.x];                          \
    const i64 start = i64(blockIdx.x - firsts[tensor]) * CHUNK;     \
    const i64 left = sizes[tensor] - start;
#define ADDRESS(column) addresses[i64(column) * count + tensor]
#define BLOCKS_BEFORE 0
#elif WAY == 1
struct Tensors {
    u64 addresses[COLUMNS][WIDTH];
    i64 sizes[WIDTH];
    i64 firsts[WIDTH];  // numbers of their first blocks in this launch
    i64 count, before, blocks_before;  // tensors of this launch, tensors and blocks of the launches before
};
#define TENSORS const __grid_constant__ Tensors tensors
#define FIND                                                        \
    int found = 0;                                                  \
    for (int end = int(tensors.count); end - found > 1;) {          \
        const int middle = (found + end) / 2;                       \
        if (tensors.firsts[middle] <= blockIdx.x) found = middle;   \
        else end = middle;                                          \
    }                                                               \
    const i64 tensor = tensors.before + found;                      \
    const i64 start = (blockIdx.x - tensors.firsts[found]) * CHUNK; \
    const i64 left = tensors.sizes[found] - start;
#define ADDRESS(column) tensors.addresses[column][found]
#define BLOCKS_BEFORE tensors.blocks_before
#else
struct Bases {
    u64 addresses[COLUMNS];
};
#define TENSORS const __grid_constant__ Bases bases, const u32 *owners
#define FIND                                                        \
    const i64 tensor = owners[blockIdx.x];                          \
    const i64 start = i64(blockIdx.x) * CHUNK, left = CHUNK;
#define ADDRESS(column) bases.addresses[column]
#define BLOCKS_BEFORE 0
#endif

// V elements; those that nobody reads again soon do not displace others in the cache.
template <class P, class W> __device__ __forceinline__ P streamed(const void* at) {
    const W words = __ldcs((const W*)at);
    return *(const P*)&words;
}
template <class P> __device__ __forceinline__ P load_once(const void* at) {
    if (sizeof(P) == 16) return streamed<P, uint4>(at);
    if (sizeof(P) == 8) return streamed<P, uint2>(at);
    return *(const P*)at;
}

// *to = value unless the answer is bad. No branch: a compiler would move all loads behind it, and these would wait.
template <class P> __device__ __forceinline__ void store(P* to, P value, Answer answer) {
#if defined(GUARD) && defined(__CUDACC__)
#define UNLESS_BAD(st) "{\n.reg .pred p;\nsetp.eq.u32 p, %0, 0;\n@p st.global." st ";\n}"
    const u32 bad = answer.bad();
    if constexpr (sizeof(P) == 16) {
        const uint4 w = *(const uint4*)&value;
        asm volatile(UNLESS_BAD("v4.u32 [%1], {%2, %3, %4, %5}") ::"r"(bad), "l"(to), "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w) : "memory");
    } else if constexpr (sizeof(P) == 8)
        asm volatile(UNLESS_BAD("u64 [%1], %2") ::"r"(bad), "l"(to), "l"(*(const u64*)&value) : "memory");
    else if constexpr (sizeof(P) == 4)
        asm volatile(UNLESS_BAD("u32 [%1], %2") ::"r"(bad), "l"(to), "r"(*(const u32*)&value) : "memory");
    else if constexpr (sizeof(P) == 2)
        asm volatile(UNLESS_BAD("u16 [%1], %2") ::"r"(bad), "l"(to), "h"(*(const unsigned short*)&value) : "memory");
    else
        asm volatile(UNLESS_BAD("u8 [%1], %2") ::"r"(bad), "l"(to), "r"(u32(*(const u8*)&value)) : "memory");
#else
    if (!answer.bad()) *to = value;
#endif
}
