// The building blocks of this folder's kernels for GPUs of compute capability 9.0: barriers, the tensor memory accelerator
// (TMA), the tensor cores' instructions for warpgroups (wgmma), and numbers packed and passed between threads.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
typedef unsigned char u8;
struct __align__(64) Map { char bytes[128]; };  // CUtensorMap of cuda.h

#define INLINE __device__ __forceinline__

// Barriers in shared memory: a phase ends when all threads have arrived and all announced bytes have been loaded.
INLINE void init(u32 barrier, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(count)); }
INLINE void announce(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}
INLINE void arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory"); }
INLINE void wait_for(u32 barrier, u32 phase) {
    asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\n"
                 "bra AGAIN;\nDONE:\n}" :: "r"(barrier), "r"(phase) : "memory");
}
INLINE void load(u32 to, const Map* from, int column, int row, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 :: "r"(to), "l"(from), "r"(column), "r"(row), "r"(barrier) : "memory");
}
INLINE void load(u32 to, const Map* from, int column, int row, int slice, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                 :: "r"(to), "l"(from), "r"(column), "r"(row), "r"(slice), "r"(barrier) : "memory");
}

// Blocks of a cluster: the same address in another block's shared memory, and loads that write to the same address in both
// of two blocks.
INLINE u32 rank_in_cluster() { u32 rank; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank)); return rank; }
INLINE void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
INLINE void arrive(u32 barrier, u32 rank) {  // at the barrier of the block of this rank
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [there];\n}"
                 :: "r"(barrier), "r"(rank) : "memory");
}
INLINE void load_for_both(u32 to, const Map* from, int column, int row, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2, %3}], [%4], %5;"
                 :: "r"(to), "l"(from), "r"(column), "r"(row), "r"(barrier), "h"((u16)3) : "memory");
}

// A matrix descriptor for wgmma in shared memory, written by the TMA with the same swizzle: 1 is 128 bytes, 2 is 64, 3 is
// 32. `group`: bytes of 8 rows. The summed dimension is along the rows; or it is across them, and the next 64 numbers of
// the other dimension are `next` bytes away.
INLINE u64 matrix(u32 address, u32 group, u64 swizzle, u32 next = 16) {
    return (u64)((address & 0x3FFFF) >> 4) | ((u64)(next >> 4) << 16) | ((u64)(group >> 4) << 32) | (swizzle << 62);
}
INLINE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
INLINE void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> INLINE void wait_for_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory"); }
template <int COUNT> INLINE void made(float (&x)[COUNT]) {  // keeps the compiler from moving a use of x before this
    #pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(x[i]) :: "memory");
}
template <int COUNT> INLINE void made(u32 (&x)[COUNT]) {
    #pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+r"(x[i]) :: "memory");
}

INLINE u32 fp8(float a, float b, float c, float d) {
    u32 out;
    asm("{\n.reg .b16 x, y;\ncvt.rn.satfinite.e4m3x2.f32 x, %2, %1;\ncvt.rn.satfinite.e4m3x2.f32 y, %4, %3;\n"
        "mov.b32 %0, {x, y};\n}" : "=r"(out) : "f"(a), "f"(b), "f"(c), "f"(d));
    return out;
}
INLINE u32 bf16(float a, float b) {
    u32 out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(b), "f"(a));
    return out;
}
INLINE u32 fp16(float a, float b) {
    u32 out;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(b), "f"(a));
    return out;
}
INLINE float2 from_fp16(u32 x) {
    float2 y;
    asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %2;\ncvt.f32.f16 %0, a;\ncvt.f32.f16 %1, b;\n}" : "=f"(y.x), "=f"(y.y) : "r"(x));
    return y;
}
// Transposes the numbers of four adjacent threads: number i of thread j becomes number j of thread i.
INLINE void turn(u32 (&x)[4]) {
    #pragma unroll
    for (int apart = 1; apart < 4; apart *= 2) {
        bool later = threadIdx.x & apart;
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & apart) continue;
            u32 other = __shfl_xor_sync(~0u, later ? x[i] : x[i + apart], apart);
            (later ? x[i] : x[i + apart]) = other;
        }
    }
}
