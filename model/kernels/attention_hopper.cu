// Attention of float8_e4m3 queries, keys and values in heads of 128, for GPUs of compute capability 9.0.
//
// attention_hopper.py puts in the products and compiles this. A block of threads, one on each multiprocessor, takes one
// tile after the other: QUERIES queries of a head and all keys, or some of them. Its first warpgroup's first thread
// has the tensor memory accelerator (TMA) load a ring of STAGES tiles of TILE keys and values. Three more warpgroups
// have 64 queries each. Their tensor cores multiply while other warpgroups compute exponentials.
//
// The numerators of a softmax, at most 1, are multiplied by 2^8 before they become 8 bits. What is summed up are the
// exact ones, in fp32. A warpgroup's scores lie in registers in another order than the tensor cores take numerators;
// so the values of every 16 keys lie in that order too, and their tokens along the rows: see `across`.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
typedef unsigned char u8;
struct __align__(64) Map { char bytes[128]; };  // CUtensorMap, of cuda.h

constexpr int WARPGROUP = 128, ATTENDING = 3, ROWS = 64, QUERIES = ATTENDING * ROWS, HEAD = 128;
constexpr int TILE = 96, STAGES = 4, VALUES_ROW = 32, SCORES = TILE / 2;  // SCORES: of a thread
constexpr int TILE_BYTES = TILE * HEAD, QUERY_BYTES = QUERIES * HEAD;
constexpr int WARPS = 4 * ATTENDING, RESULTS = HEAD / 8 + 1;  // RESULTS: float4 of a thread
constexpr float NUMERATORS = 8.f, LOG2_E = 1.4426950408889634f, LEAST = -1e30f;

#define INLINE __device__ __forceinline__

// Barriers in shared memory: a phase ends when all have arrived and all bytes that were announced are there.
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

// A matrix in shared memory as wgmma takes it, the summed dimension along its rows, written by the TMA with the same
// swizzle: 1 is 128 bytes, 3 is 32. `group`: bytes of 8 rows.
INLINE u64 matrix(u32 address, u32 group, u64 swizzle) {
    return (u64)((address & 0x3FFFF) >> 4) | (1ull << 16) | ((u64)(group >> 4) << 32) | (swizzle << 62);
}
INLINE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
INLINE void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> INLINE void wait_for_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory"); }
template <int COUNT> INLINE void made(float (&x)[COUNT]) {  // so the compiler moves no use of x before this
    #pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(x[i]) :: "memory");
}
@PRODUCTS@

INLINE float power(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
INLINE int bits(float x) { return __float_as_int(x); }
INLINE u32 fp8(float a, float b, float c, float d) {
    u32 out;
    asm("{\n.reg .b16 x, y;\ncvt.rn.satfinite.e4m3x2.f32 x, %2, %1;\ncvt.rn.satfinite.e4m3x2.f32 y, %4, %3;\n"
        "mov.b32 %0, {x, y};\n}" : "=r"(out) : "f"(a), "f"(b), "f"(c), "f"(d));
    return out;
}

// A thread has scores of two rows: of score i the row is i / 2 % 2, the key i / 4 * 8 + lane % 4 * 2 + i % 2.
INLINE void hide_behind(float (&scores)[SCORES], int keys) {
    if (keys < TILE)
        #pragma unroll
        for (int i = 0; i < SCORES; i++)
            if (i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2 >= keys) scores[i] = LEAST;
}
// The largest score of a row, which four threads have, and of those before. Where that was not negative, integers are
// compared: there is an instruction for the largest of three.
INLINE float largest(const float (&scores)[SCORES], int row, float before, bool positive) {
    float most = before;
    if (positive) {
        int a = bits(before), b = a;
        #pragma unroll
        for (int i = 2 * row; i < SCORES; i += 8) {
            a = max(max(bits(scores[i]), bits(scores[i + 1])), a);
            b = max(max(bits(scores[i + 4]), bits(scores[i + 5])), b);
        }
        most = __int_as_float(max(a, b));
    } else {
        #pragma unroll
        for (int i = 2 * row; i < SCORES; i += 4) most = fmaxf(most, fmaxf(scores[i], scores[i + 1]));
    }
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    return fmaxf(most, __shfl_xor_sync(~0u, most, 2));
}
// Scores become numerators. `shrink`: what numerators of before are to be multiplied by.
INLINE void soften(float (&scores)[SCORES], float (&most)[2], float (&sum)[2], float (&shrink)[2], float factor) {
    bool positive = __all_sync(~0u, most[0] >= 0.f && most[1] >= 0.f);
    float less[2], added[4] = {0.f, 0.f, 0.f, 0.f};
    #pragma unroll
    for (int row = 0; row < 2; row++) {
        float now = largest(scores, row, most[row], positive);
        shrink[row] = power((most[row] - now) * factor);
        most[row] = now;
        less[row] = NUMERATORS - now * factor;
    }
    #pragma unroll
    for (int i = 0; i < SCORES; i++) {
        scores[i] = power(fmaf(scores[i], factor, less[i / 2 % 2]));
        added[i % 4] += scores[i];
    }
    #pragma unroll
    for (int row = 0; row < 2; row++) sum[row] = fmaf(sum[row], shrink[row], added[2 * row] + added[2 * row + 1]);
}
INLINE void to_8_bits(u32 (&numerators)[SCORES / 4], const float (&x)[SCORES]) {
    #pragma unroll
    for (int i = 0; i < SCORES / 4; i++) {
        int at = 16 * (i / 4) + 8 * (i / 2 % 2) + 2 * (i % 2);
        numerators[i] = fp8(x[at], x[at + 1], x[at + 4], x[at + 5]);
    }
}

// Keys are those of the slots whose `shares` are 0, which come first; all of them without shares.
INLINE int seen_keys(const float* shares, int slots, int keys) {
    if (!shares) return keys;
    int there = 0;
    for (int i = 0; i < slots; i++) there += shares[i] == 0.f;
    return keys / slots * there;
}
// How the work is divided. As many tiles of queries as fill all blocks of threads equally often are attended to whole.
// Of the others the keys are divided into `parts`. Blocks side by side read the same keys at the same time.
struct Division { int rows, whole, shared, key_tiles, parts; };
INLINE Division divide(int queries, int keys, int heads, int parts) {
    int rows = (queries + QUERIES - 1) / QUERIES, shared = rows * heads % gridDim.x, key_tiles = (keys + TILE - 1) / TILE;
    return {rows, rows * heads - shared, shared, key_tiles, min(parts, key_tiles)};
}
// Some of the tiles of keys for a tile of queries. `part` is -1 if they are all of them.
struct Work { int tile, part, first, count; };
INLINE bool take(Work& work, int number, const Division& d) {
    bool whole = number < d.whole || d.parts == 1;
    int part = whole ? 0 : (number - d.whole) / d.shared, parts = whole ? 1 : d.parts;
    int first = part * d.key_tiles / parts;
    work = {number - part * d.shared, whole ? -1 : part, first, (part + 1) * d.key_tiles / parts - first};
    return number < d.whole + d.shared * d.parts;
}
// A warp's results of a part, with most and sum, as each thread has them.
INLINE float4* results_at(float4* results, int tile, int part, int warp, const Division& d) {
    return results + (((tile - d.whole) * d.parts + part) * WARPS + warp) * RESULTS * 32 + threadIdx.x % 32;
}
INLINE float4 stored(const float4* at) {  // by another multiprocessor
    float4 x;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(at) : "memory");
    return x;
}
// Stores a warp's results. Of a tile the last warp to do so then gets the sum of all parts, in their order.
INLINE bool summed(float (&result)[HEAD / 2], float (&most)[2], float (&sum)[2], float4* results, int* stored_parts,
                   const Division& d, const Work& work, int warp, float factor) {
    float4* to = results_at(results, work.tile, work.part, warp, d);
    #pragma unroll
    for (int i = 0; i < HEAD / 8; i++) __stcg(to + 32 * i, make_float4(result[4 * i], result[4 * i + 1], result[4 * i + 2], result[4 * i + 3]));
    __stcg(to + 32 * (HEAD / 8), make_float4(most[0], most[1], sum[0], sum[1]));
    __threadfence();
    __syncwarp();
    int before = 0;
    if (threadIdx.x % 32 == 0) before = atomicAdd(stored_parts + (work.tile - d.whole) * WARPS + warp, 1);
    if (__shfl_sync(~0u, before, 0) < d.parts - 1) return false;
    __threadfence();
    #pragma unroll
    for (int i = 0; i < HEAD / 2; i++) result[i] = 0.f;
    most[0] = most[1] = LEAST, sum[0] = sum[1] = 0.f;
    for (int part = 0; part < d.parts; part++) {
        const float4* from = results_at(results, work.tile, part, warp, d);
        float4 other = stored(from + 32 * (HEAD / 8));
        float now[2] = {fmaxf(most[0], other.x), fmaxf(most[1], other.y)};
        float old[2] = {power((most[0] - now[0]) * factor), power((most[1] - now[1]) * factor)};
        float own[2] = {power((other.x - now[0]) * factor), power((other.y - now[1]) * factor)};
        most[0] = now[0], most[1] = now[1];
        sum[0] = sum[0] * old[0] + other.z * own[0], sum[1] = sum[1] * old[1] + other.w * own[1];
        #pragma unroll
        for (int i = 0; i < HEAD / 8; i++) {
            float4 x = stored(from + 32 * i);
            result[4 * i] = result[4 * i] * old[0] + x.x * own[0], result[4 * i + 1] = result[4 * i + 1] * old[0] + x.y * own[0];
            result[4 * i + 2] = result[4 * i + 2] * old[1] + x.z * own[1], result[4 * i + 3] = result[4 * i + 3] * old[1] + x.w * own[1];
        }
    }
    return true;
}

// q, k: [tokens, heads * HEAD]; v: [heads * HEAD, tokens], see `across`. out, bf16 [queries, heads * HEAD], becomes
// attention to the keys, times *scale_v, plus `mean`. Of several parts there are `results`, float4 [shared tiles, parts,
// WARPS, RESULTS, 32], and `stored_parts` [shared tiles, WARPS], zeros.
extern "C" __global__ void __launch_bounds__(WARPGROUP * (ATTENDING + 1), 1)
attend(const __grid_constant__ Map q, const __grid_constant__ Map k, const __grid_constant__ Map v, u16* out, float4* results,
       int* stored_parts, const float* scale_q, const float* scale_k, const float* scale_v, const float* mean, const float* shares,
       int slots, int queries, int keys, int heads, int parts) {
    extern __shared__ u8 unaligned[];
    u32 q_at = ((u32)__cvta_generic_to_shared(unaligned) + 1023) & ~1023u, k_at = q_at + QUERY_BYTES;
    u32 v_at = k_at + STAGES * TILE_BYTES, q_full = v_at + STAGES * TILE_BYTES, q_free = q_full + 8;
    u32 k_full = q_free + 8, k_free = k_full + 8 * STAGES, v_full = k_free + 8 * STAGES, v_free = v_full + 8 * STAGES;
    keys = seen_keys(shares, slots, keys);
    Division d = divide(queries, keys, heads, parts);
    if (threadIdx.x == 0) {
        init(q_full, 1), init(q_free, ATTENDING);
        for (int i = 0; i < 8 * STAGES; i += 8)
            init(k_full + i, 1), init(v_full + i, 1), init(k_free + i, ATTENDING), init(v_free + i, ATTENDING);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    u32 done = 0, q_phase = 0;  // tiles of keys so far
    int number = blockIdx.x;
    Work work;

    if (threadIdx.x < WARPGROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        for (; threadIdx.x == 0 && take(work, number, d); number += gridDim.x) {
            int column = work.tile / d.rows * HEAD;
            wait_for(q_free, q_phase ^= 1);  // the phase before the first is over
            announce(q_full, QUERY_BYTES);
            load(q_at, &q, column, work.tile % d.rows * QUERIES, q_full);
            for (int i = 0; i < work.count; i++, done++) {
                u32 stage = done % STAGES, phase = done / STAGES & 1 ^ 1, at = stage * TILE_BYTES;
                int key = (work.first + i) * TILE;
                wait_for(k_free + 8 * stage, phase);
                announce(k_full + 8 * stage, TILE_BYTES);
                load(k_at + at, &k, column, key, k_full + 8 * stage);
                wait_for(v_free + 8 * stage, phase);
                announce(v_full + 8 * stage, TILE_BYTES);
                for (int more = 0; more < TILE; more += VALUES_ROW)
                    load(v_at + at + more * HEAD, &v, key + more, column, v_full + 8 * stage);
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
    int group = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0) - 1;  // so the compiler knows that a warp has one
    bool first_thread = threadIdx.x % WARPGROUP == 0;
    // 1 / sqrt(HEAD); and what is hidden stays hidden where all scores are 0
    float factor = fmaxf(*scale_q * *scale_k * (0.08838834764831845f * LOG2_E), 1e-20f);
    u64 q_matrix = matrix(q_at + group * ROWS * HEAD, 8 * HEAD, 1);
    float result[HEAD / 2], scores[SCORES], most[2], sum[2], shrink[2];
    u32 numerators[SCORES / 4];

    auto wait_for_keys = [&](u32 tile) { wait_for(k_full + 8 * (tile % STAGES), tile / STAGES & 1); };
    auto wait_for_values = [&](u32 tile) { wait_for(v_full + 8 * (tile % STAGES), tile / STAGES & 1); };
    auto keys_read = [&](u32 tile) { if (first_thread) arrive(k_free + 8 * (tile % STAGES)); };
    auto values_read = [&](u32 tile) { if (first_thread) arrive(v_free + 8 * (tile % STAGES)); };
    auto multiply_keys = [&]() {
        u64 k_matrix = matrix(k_at + done % STAGES * TILE_BYTES, 8 * HEAD, 1);
        begin_products();
        first_product(scores, q_matrix, k_matrix);
        #pragma unroll
        for (int i = 1; i < HEAD / 32; i++) next_product(scores, q_matrix + 2 * i, k_matrix + 2 * i);
        end_products();
    };
    auto multiply_values = [&](u32 tile) {
        wait_for_values(tile);
        u64 v_matrix = matrix(v_at + tile % STAGES * TILE_BYTES, 8 * VALUES_ROW, 3);
        begin_products();
        #pragma unroll
        for (int i = 0; i < TILE / 32; i++) add_values(result, numerators + 4 * i, v_matrix + i * (VALUES_ROW * HEAD / 16));
        end_products();
    };

    for (; take(work, number, d); number += gridDim.x) {
        wait_for(q_full, q_phase), q_phase ^= 1;
        if (work.tile % d.rows * QUERIES + group * ROWS >= queries) {  // this warpgroup has none
            for (u32 tile = done; first_thread && tile < done + work.count; tile++) {
                wait_for_keys(tile);
                keys_read(tile);
                wait_for_values(tile);
                values_read(tile);
            }
            done += work.count;
            if (first_thread) arrive(q_free);
            asm volatile("bar.sync %0, 128;" :: "r"(group + 1) : "memory");  // no warp waits for a phase long over
            continue;
        }
        int left = keys - work.first * TILE;
        #pragma unroll
        for (int i = 0; i < HEAD / 2; i++) result[i] = 0.f;
        most[0] = most[1] = LEAST, sum[0] = sum[1] = 0.f;
        wait_for_keys(done);
        multiply_keys();
        wait_for_products<0>(), made(scores);
        keys_read(done++);
        hide_behind(scores, left);
        soften(scores, most, sum, shrink, factor);
        to_8_bits(numerators, scores);
        if (work.count > 1) wait_for_keys(done);
        for (int i = 1; i < work.count; i++) {
            multiply_keys();
            multiply_values(done - 1);
            wait_for_products<1>(), made(scores);
            keys_read(done++);
            if (i == work.count - 1) hide_behind(scores, left - i * TILE);
            soften(scores, most, sum, shrink, factor);
            // Sums are never negative. That they are looked at here has the compiler add them up before it waits.
            bool shrinks = __any_sync(~0u, shrink[0] + shrink[1] < 2.f || sum[0] + sum[1] < 0.f);
            if (i + 1 < work.count) wait_for_keys(done);  // a loop, which the compiler moves no exponentials past
            wait_for_products<0>(), made(result);
            values_read(done - 2);
            if (shrinks)
                #pragma unroll
                for (int j = 0; j < HEAD / 2; j++) result[j] *= shrink[j / 2 % 2];
            to_8_bits(numerators, scores);
        }
        if (first_thread) arrive(q_free);
        multiply_values(done - 1);
        wait_for_products<0>(), made(result);
        values_read(done - 1);

        int warp = threadIdx.x / 32 - WARPGROUP / 32;
        if (work.part >= 0 && !summed(result, most, sum, results, stored_parts, d, work, warp, factor)) continue;
        int head = work.tile / d.rows;
        #pragma unroll
        for (int row = 0; row < 2; row++) {
            sum[row] += __shfl_xor_sync(~0u, sum[row], 1);
            sum[row] += __shfl_xor_sync(~0u, sum[row], 2);
            int query = work.tile % d.rows * QUERIES + warp * 16 + threadIdx.x % 32 / 4 + 8 * row;
            if (query >= queries) continue;
            float scale = *scale_v / sum[row];
            #pragma unroll
            for (int i = 0; i < HEAD / 8; i++) {
                int column = head * HEAD + 8 * i + threadIdx.x % 4 * 2;
                float low = fmaf(result[4 * i + 2 * row], scale, mean[column]);
                float high = fmaf(result[4 * i + 2 * row + 1], scale, mean[column + 1]);
                asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(*(u32*)(out + (u64)query * heads * HEAD + column)) : "f"(high), "f"(low));
            }
        }
    }
}

// Values lie across as [columns, row]: along a row the tokens, of every 16 in the order 0 1 8 9 2 3 10 11 4 5 12 13 6 7
// 14 15. A block of threads turns 64 tokens by 64 columns; columns and row are multiples of 64.
struct __align__(16) Turning { u8 tile[64][68]; };  // [token][column], 4 bytes more so that a column's tokens lie in several banks

// Values [tokens, columns], zeros behind them.
extern "C" __global__ void __launch_bounds__(256) across(const u8* values, u8* out, int tokens, int columns, int row) {
    __shared__ Turning shared;
    int column = blockIdx.x * 64, token = blockIdx.y * 64;
    for (int i = threadIdx.x; i < 64 * 16; i += 256) {
        int down = i / 16, along = i % 16 * 4;
        bool there = token + down < tokens;
        *(u32*)&shared.tile[down][along] = there ? *(const u32*)(values + (u64)(token + down) * columns + column + along) : 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 64 * 16; i += 256) {
        int down = i / 16, along = i % 16 * 4, from = along / 16 * 16 + along % 16 / 2;
        const u8 (*x)[68] = shared.tile + from;
        u32 four = x[0][down] | x[1][down] << 8 | x[8][down] << 16 | (u32)x[9][down] << 24;
        *(u32*)(out + (u64)(column + down) * row + token + along) = four;
    }
}

// x, bf16 [tokens, columns] whose rows are `stride` apart, as (x - shift) * factor, to the `places` of its tokens. Eight
// numbers are read at once, and pairs of tokens that lie side by side are written at once.
extern "C" __global__ void __launch_bounds__(256)
put_across(const u16* x, u8* out, const long long* places, const float* shift, const float* factor, int tokens, int stride, int row) {
    __shared__ Turning shared;
    __shared__ int place[64];
    int column = blockIdx.x * 64, token = blockIdx.y * 64, count = min(64, tokens - token);
    float by = *factor;
    if (threadIdx.x < 64) place[threadIdx.x] = threadIdx.x < count ? (int)places[token + threadIdx.x] : -1;
    for (int i = threadIdx.x; i < 8 * count; i += 256) {
        int down = i / 8, along = i % 8 * 8;
        uint4 eight = *(const uint4*)(x + (u64)(token + down) * stride + column + along);  // bf16 is the upper half of fp32
        u32 two[4] = {eight.x, eight.y, eight.z, eight.w};
        #pragma unroll
        for (int j = 0; j < 4; j += 2) {
            float4 less = *(const float4*)(shift + column + along + 2 * j);
            float a = (__int_as_float(two[j] << 16) - less.x) * by, b = (__int_as_float(two[j] & 0xFFFF0000u) - less.y) * by;
            float c = (__int_as_float(two[j + 1] << 16) - less.z) * by, d = (__int_as_float(two[j + 1] & 0xFFFF0000u) - less.w) * by;
            *(u32*)&shared.tile[down][along + 2 * j] = fp8(a, b, c, d);
        }
    }
    __syncthreads();
    int first = threadIdx.x % 32 * 2, at = place[first], next = place[first + 1];  // a warp has the tokens of a column
    bool together = at % 2 == 0 && next == at + 1;
    for (int down = threadIdx.x / 32 * 4; down < 64; down += 32) {
        u32 a = *(u32*)&shared.tile[first][down], b = *(u32*)&shared.tile[first + 1][down];
        u8* to = out + (u64)(column + down) * row;
        #pragma unroll
        for (int i = 0; i < 4; i++, to += row, a >>= 8, b >>= 8) {
            if (together) *(u16*)(to + at) = (u16)(a & 0xFF | b << 8);
            else {
                if (at >= 0) to[at] = (u8)a;
                if (next >= 0) to[next] = (u8)b;
            }
        }
    }
}
