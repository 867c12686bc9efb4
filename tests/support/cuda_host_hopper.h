// What tensor_cores/hopper.cuh offers and wgmma, for cuda_host.h: addresses are those of a cluster's shared memory, 256 KiB for each of
// its blocks, the number of the block above. Copies and products are done at once; who waits for them waits all the same.

static const int WINDOW = 1 << 18;
alignas(1024) static unsigned char windows[CLUSTER_BLOCKS][WINDOW];
static inline unsigned char* at_address(u32 address) { return windows[address / WINDOW] + address % WINDOW; }
static inline u32 shared_address(const void* p) { return u32((const unsigned char*)p - windows[0]); }
static inline u32 there(u32 address, int rank) { return rank * WINDOW + address % WINDOW; }

struct alignas(16) float4 {
    float x, y, z, w;
};
struct int2 {
    int x, y;
};
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

struct TensorMap {
    u64 words[16];  // address; sizes of four axes; strides of three; rows of a box; bytes of an element are 2
};

// A barrier in shared memory that counts arrivals and bytes; it lies at its address.
struct PhaseBarrier {
    short count, pending;
    int bytes_and_phase;  // bytes still to come << 1 | parity of the phase
    void check() {
        if (pending == 0 && bytes_and_phase >> 1 == 0) pending = count, bytes_and_phase ^= 1;
        ++progress;
    }
};
static inline PhaseBarrier& phase_barrier(u32 address) { return *(PhaseBarrier*)at_address(address); }
static inline void barrier_init(u32 address, int arrivals) {
    phase_barrier(address) = {short(arrivals), short(arrivals), 0};
}
static inline void barrier_arrive(u32 address) {
    PhaseBarrier& b = phase_barrier(address);
    if (--b.pending < 0) fail("more arrivals than a phase has");
    b.check();
}
static inline void barrier_expect(u32 address, u32 bytes) {
    phase_barrier(address).bytes_and_phase += 2 * int(bytes);
    barrier_arrive(address);
}
static inline void barrier_wait(u32 address, u32 parity) {
    while ((phase_barrier(address).bytes_and_phase & 1) == int(parity)) leave();
}
static inline void barrier_arrive_at(u32 address, int rank) { barrier_arrive(there(address, rank)); }
static inline void barriers_ready() {}
static inline void cluster_sync() { cluster_wait(); }

// bar.sync and bar.arrive of some of a block's threads
static struct { int arrived; unsigned generation; } named_barriers[CLUSTER_BLOCKS][16];
static inline void named_arrive(int name, int count) {
    auto& b = named_barriers[host_thread->rank][name];
    __syncwarp();
    if (++b.arrived == count) b.arrived = 0, ++b.generation;
    ++progress;
}
static inline void named_sync(int name, int count) {
    auto& b = named_barriers[host_thread->rank][name];
    __syncwarp();
    const unsigned generation = b.generation;
    named_arrive(name, count);
    while (b.generation == generation) leave();
}

// Rows of 128 bytes; pieces of 16 bytes of a row change places by the row's address.
[[gnu::always_inline]] static inline u32 swizzled(u32 address) { return address ^ (address >> 7 & 7) << 4; }
static void load_box(u32 to, const TensorMap& map, u32 barrier, int x, int y, int z, int w) {
    const u64* m = map.words;
    const int rows = int(m[8]);
    const bool outside = z < 0 || z >= int(m[3]) || w < 0 || w >= int(m[4]);
    for (int r = 0; r < rows; ++r)
        for (int c = 0; c < 64; ++c) {
            unsigned short value = 0;
            if (!outside && y + r >= 0 && y + r < int(m[2]) && x + c < int(m[1]))
                value = ((const unsigned short*)m[0])[x + c + (y + r) * m[5] + z * m[6] + w * m[7]];
            *(unsigned short*)at_address(swizzled(to + r * 128 + 2 * c)) = value;
        }
    phase_barrier(barrier).bytes_and_phase -= 2 * rows * 128;
    phase_barrier(barrier).check();
}
static void load_box_for(u32 to, const TensorMap& map, u32 barrier, int x, int y, int z, int w, unsigned short blocks) {
    for (int rank = 0; blocks >> rank; ++rank)
        if (blocks >> rank & 1) load_box(there(to, rank), map, there(barrier, rank), x, y, z, w);
}
// A box from shared memory; what lies outside the tensor is left out.
static void store_box(const TensorMap& map, u32 from, int x, int y) {
    const u64* m = map.words;
    for (int r = 0; r < int(m[8]); ++r)
        for (int c = 0; c < 64; ++c)
            if (y + r >= 0 && y + r < int(m[2]) && x + c < int(m[1]))
                ((unsigned short*)m[0])[x + c + (y + r) * m[5]] = *(unsigned short*)at_address(swizzled(from + r * 128 + 2 * c));
}
static inline void store_global(void* to, const u32 (&x)[4]) { memcpy(to, x, 16); }
static inline float4 load_from_others(const float4* from) { return *from; }

static inline u64 descriptor(u32 sixteenths, u32 leading, u32 stride) {
    return u64((stride >> 4) | 1u << 30) << 32 | (sixteenths + (leading >> 4 << 16));
}
#pragma GCC push_options
#pragma GCC optimize("O2")
// Elements of an operand in shared memory of this block, of row `row`, along the sum; by_rows: where the summed axis goes
// over rows.
static inline void read_operand(float (&x)[16], u64 descriptor, int row, bool by_rows) {
    const u32 start = u32(descriptor & 0x3fff) << 4, leading = u32(descriptor >> 16 & 0x3fff) << 4;
    const u32 stride = u32(descriptor >> 32 & 0x3fff) << 4;
    const u32 first = start + (by_rows ? row / 64 * leading + row % 64 * 2 : row / 8 * stride + row % 8 * 128);
    const unsigned char* window = windows[host_thread->rank];
    for (u32 k = 0; k < 16; ++k) {
        const u32 place = first + (by_rows ? k / 8 * stride + k % 8 * 128 : k * 2);
        x[k] = half_of(PTX_T, *(const unsigned short*)(window + swizzled(place)));
    }
}
// x: rows lane / 4 and 8 below it. The sums are independent, so the host adds to all at once.
template <int N> static void multiplied(float (&d)[N], const float (&x)[2][16], u64 b, bool by_rows, bool add) {
    float y[2][16];
    for (int i = 0; i < N; i += 4) {
        for (int e = 0; e < 2; ++e) read_operand(y[e], b, i / 4 * 8 + lane_id() % 4 * 2 + e, by_rows);
        float sum[4] = {};
        if (add) memcpy(sum, d + i, sizeof sum);
        for (int k = 0; k < 16; ++k)
            for (int j = 0; j < 4; ++j) sum[j] += x[j / 2][k] * y[j % 2][k];
        memcpy(d + i, sum, sizeof sum);
    }
}
// A step of A in shared memory.
template <int N> static void multiplied(float (&d)[N], u64 a, u64 b, bool by_columns, bool by_rows, bool add) {
    const int row = threadIdx.x % 128 / 32 * 16 + lane_id() / 4;
    float x[2][16];
    for (int h = 0; h < 2; ++h) read_operand(x[h], a, row + 8 * h, by_columns);
    multiplied(d, x, b, by_rows, add);
}
constexpr int STEPS = 4;  // of one call that has A in shared memory: 64 of the sum
#define WGMMA(NAME, BY_COLUMNS, BY_ROWS)                                                                       \
    template <int A_STEP, int B_STEP, int N> static void NAME(float (&d)[N], u64 a, u64 b, int add = 1) {      \
        for (int i = 0; i < STEPS; ++i)                                                                        \
            multiplied(d, a + i * A_STEP, b + i * B_STEP, BY_COLUMNS, BY_ROWS, add || i > 0);                  \
    }
WGMMA(wgmma_ss, false, false)
WGMMA(wgmma_ss_bt, false, true)
WGMMA(wgmma_ss_at, true, false)
WGMMA(wgmma_ss_at_bt, true, true)
template <int A_STEP, int B_STEP, int N, int M>
static void wgmma_rs_bt(float (&d)[N], const u32 (&a)[M], u64 b, int add = 1) {
    const unsigned first = host_thread->number / 32 * 32;
    for (int i = 0; i < M / 4; ++i) {
        memcpy(shown[host_thread->number], a + 4 * i, 16);
        __syncwarp();
        float x[2][16];
        for (int h = 0; h < 2; ++h)
            for (int k = 0; k < 16; ++k) {
                const u32 two = shown[first + lane_id() / 4 * 4 + k % 8 / 2][k / 8 * 2 + h];
                x[h][k] = half_of(PTX_T, two >> 16 * (k % 2) & 0xffff);
            }
        multiplied(d, x, b + i * B_STEP, true, add || i > 0);
        __syncwarp();
    }
}
#pragma GCC pop_options
static inline void wgmma_fence() {}
static inline void wgmma_commit() {}
template <int PENDING> static void wgmma_wait() { __syncwarp(); }  // warps run it together
template <class X> static void keep(X&) {}
template <int REGISTERS> static void more_registers() {}
template <int REGISTERS> static void fewer_registers() {}
// Contiguous bytes between shared and global memory.
static inline void load_bytes(u32 to, const void* from, u32 barrier, u32 bytes) {
    memcpy(at_address(to), from, bytes);
    phase_barrier(barrier).bytes_and_phase -= 2 * int(bytes);
    phase_barrier(barrier).check();
}
static inline void store_bytes(void* to, u32 from, u32 bytes) { memcpy(to, at_address(from), bytes); }
static inline void add_bytes(void* to, u32 from, u32 bytes) {
    for (u32 i = 0; i < bytes / 4; ++i) ((float*)to)[i] += ((const float*)at_address(from))[i];
}
template <int PENDING = 0> static void bulk_read() {}
static inline void bulk_done() {}
static inline void async_fence() {}
static inline void load_pair(float (&x)[2], u32 from) { memcpy(x, at_address(from), 8); }
// Four matrices of 8 x 8; a lane has two numbers of a column, and gives the address of a row.
static inline void store_transposed(u32 to, u32 a, u32 b, u32 c, u32 d) {
    const unsigned first = host_thread->number / 32 * 32, lane = lane_id();
    unsigned* mine = shown[host_thread->number];
    mine[0] = a, mine[1] = b, mine[2] = c, mine[3] = d;
    __syncwarp();
    for (unsigned column = 0; column < 8; ++column) {
        const unsigned two = shown[first + column * 4 + lane % 8 / 2][lane / 8];
        ((unsigned short*)at_address(to))[column] = (unsigned short)(two >> 16 * (lane % 2));
    }
    __syncwarp();
}
static inline u32 load_word(u32 from) { return *(u32*)at_address(from); }
static inline void load_quad(u32 (&x)[4], u32 from) { memcpy(x, at_address(from), 16); }
// Four matrices of 8 x 8 as accumulators lie; lane l gives the address of row l % 8 of l / 8.
static inline void store_matrices(u32 to, const u32 (&x)[4]) {
    const unsigned first = host_thread->number / 32 * 32, lane = lane_id();
    memcpy(shown[host_thread->number], x, sizeof x);
    __syncwarp();
    for (unsigned i = 0; i < 4; ++i) ((u32*)at_address(to))[i] = shown[first + lane % 8 * 4 + i][lane / 8];
    __syncwarp();
}
#undef load_matrices  // that of cuda_host.h takes a pointer
static inline void load_matrices(u32 (&x)[4], u32 from) {
    const unsigned first = host_thread->number / 32 * 32, lane = lane_id();
    memcpy(shown[host_thread->number], at_address(from), 16);
    __syncwarp();
    for (unsigned i = 0; i < 4; ++i) x[i] = shown[first + i * 8 + lane / 4][lane % 4];
    __syncwarp();
}
