// Attention of float8_e4m3 or bf16 queries, keys and values in heads of 128, for GPUs of compute capability 9.0.
//
// attention.py inserts the products, the softmax and the constants that differ between the two dtypes: BYTES of a number,
// TILE, STAGES and CLUSTER. It compiles this file after hopper.cuh. A block of threads, one on each multiprocessor (SM),
// processes one tile after the other: QUERIES queries of a head and all keys, or some of them. The first thread of its
// first warpgroup makes the tensor memory accelerator (TMA) load a ring of STAGES tiles of TILE keys and values, and the
// next queries. Three more warpgroups process 64 queries each. Their tensor cores multiply while other warpgroups compute
// exponentials.
//
// In 8 bits two blocks of threads form a CLUSTER. If both have queries of one head, each loads half of the keys and values
// for both, because reads from the GPU's cache take power, and power is the limit. So both process the keys in step.
//
// In 8 bits the numerators, at most 1, are multiplied by 2^8 before the conversion. Their sum is computed before the
// conversion. The scores' order in a warpgroup's registers differs from the order in which the tensor cores take
// numerators. So the values of every 16 keys have that order too, with their tokens along the rows: see values_across.cu.
// In bf16 values have the layout of keys.

constexpr int WARPGROUP = 128, ATTENDING = 3, ROWS = 64, QUERIES = ATTENDING * ROWS, HEAD = 128;
@NUMBERS@
constexpr int VALUES_ROW = 32, NUMERATORS = TILE * BYTES / 8;  // NUMERATORS: registers of a thread
constexpr int ROW = 128, ROWS_OF_HEAD = HEAD * BYTES / ROW;  // bytes of a row that the TMA loads
constexpr int STEP = 32, STEPS = ROW / STEP, STEP_KEYS = STEP / BYTES;  // bytes of a row that an instruction multiplies
constexpr int TILE_BYTES = TILE * HEAD * BYTES, QUERY_BYTES = QUERIES * HEAD * BYTES, QUERY_TILES = 2;  // in shared memory
constexpr int WARPS = 4 * ATTENDING, RESULTS = HEAD / 8 + 1;  // RESULTS: float4 of a thread
constexpr float LARGEST = 448.f, LOG2_E = 1.4426950408889634f;

@PRODUCTS@

INLINE float power(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
@SOFTMAX@

// Returns the number of keys in the slots whose `shares` are 0, which come first; all keys without shares.
INLINE int seen_keys(const float* shares, int slots, int keys) {
    if (!shares) return keys;
    int there = 0;
    for (int i = 0; i < slots; i++) there += shares[i] == 0.f;
    return keys / slots * there;
}
// The division of the work. A cluster processes a group of query tiles at once, one for each of its blocks. The groups that
// fill all clusters equally often are processed `whole`. For the other groups, `shared`, the keys are split into `parts`.
// Adjacent clusters read the same keys at the same time.
struct Division { int rows, tiles, whole, shared, key_tiles, parts; };
INLINE Division divide(int queries, int keys, int heads, int parts) {
    int rows = (queries + QUERIES - 1) / QUERIES, groups = (rows * heads + CLUSTER - 1) / CLUSTER;
    int shared = groups % (gridDim.x / CLUSTER), key_tiles = (keys + TILE - 1) / TILE;
    return {rows, rows * heads, groups - shared, shared, key_tiles, min(parts, key_tiles)};
}
// Some of the key tiles for a query tile; the last group may lack a query tile. `part` is -1 for all key tiles. `together`:
// the cluster's tiles are of one head.
struct Work { int tile, part, first, count; bool together; };
INLINE bool take(Work& work, int number, int rank, const Division& d) {
    bool whole = number < d.whole || d.parts == 1;
    int part = whole ? 0 : (number - d.whole) / d.shared, parts = whole ? 1 : d.parts;
    int first = part * d.key_tiles / parts, tile = (number - part * d.shared) * CLUSTER;
    bool together = CLUSTER == 2 && (tile + 1 == d.tiles || tile / d.rows == (tile + 1) / d.rows);
    work = {tile + rank, whole ? -1 : part, first, (part + 1) * d.key_tiles / parts - first, together};
    return number < d.whole + d.shared * d.parts;
}
// The address of a warp's results of a part: results, subtracted exponents and sums, in each thread's layout.
INLINE float4* results_at(float4* results, int tile, int part, int warp, const Division& d) {
    return results + (((tile - d.whole * CLUSTER) * d.parts + part) * WARPS + warp) * RESULTS * 32 + threadIdx.x % 32;
}
INLINE float4 stored(const float4* at) {  // by another SM
    float4 x;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(at) : "memory");
    return x;
}
// Stores a warp's results. The last warp to do so for a tile then receives the sum of all parts, in order, and true.
INLINE bool summed(float (&result)[HEAD / 2], float (&sum)[2], float first, float second, float4* results, int* stored_parts,
                   const Division& d, const Work& work, int warp) {
    float4* to = results_at(results, work.tile, work.part, warp, d);
    #pragma unroll
    for (int i = 0; i < HEAD / 8; i++) __stcg(to + 32 * i, make_float4(result[4 * i], result[4 * i + 1], result[4 * i + 2], result[4 * i + 3]));
    __stcg(to + 32 * (HEAD / 8), make_float4(first, second, sum[0], sum[1]));
    __threadfence();
    __syncwarp();
    int before = 0;
    if (threadIdx.x % 32 == 0) before = atomicAdd(stored_parts + (work.tile - d.whole * CLUSTER) * WARPS + warp, 1);
    if (__shfl_sync(~0u, before, 0) < d.parts - 1) return false;
    __threadfence();
    #pragma unroll
    for (int i = 0; i < HEAD / 2; i++) result[i] = 0.f;
    float most[2] = {-1e30f, -1e30f};
    sum[0] = sum[1] = 0.f;
    for (int part = 0; part < d.parts; part++) {
        const float4* from = results_at(results, work.tile, part, warp, d);
        float4 other = stored(from + 32 * (HEAD / 8));
        float now[2] = {fmaxf(most[0], other.x), fmaxf(most[1], other.y)};
        float old[2] = {power(most[0] - now[0]), power(most[1] - now[1])};
        float own[2] = {power(other.x - now[0]), power(other.y - now[1])};
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

// Stores a row of a warp's results, times a factor. Each of four threads has two of eight columns; a thread stores 16 bytes
// at once.
INLINE void store_16_bits(u16* to, const float (&x)[HEAD / 2], int row, float factor, bool there) {
    #pragma unroll
    for (int i = 0; i < HEAD / 8; i += 4) {
        u32 y[4];
        #pragma unroll
        for (int j = 0; j < 4; j++) {
            int at = 4 * (i + j) + 2 * row;
            y[j] = bf16(x[at] * factor, x[at + 1] * factor);
        }
        turn(y);
        if (there) *(uint4*)(to + 8 * (i + threadIdx.x % 4)) = make_uint4(y[0], y[1], y[2], y[3]);
    }
}
INLINE void store_8_bits(u8* to, const float (&x)[HEAD / 2], int row, float factor, bool there) {
    #pragma unroll
    for (int i = 0; i < HEAD / 8; i += 8) {
        u32 y[4];
        #pragma unroll
        for (int j = 0; j < 4; j++) {
            int at = 4 * (i + 2 * j) + 2 * row;
            y[j] = fp8(x[at] * factor, x[at + 1] * factor, x[at + 4] * factor, x[at + 5] * factor);
        }
        turn(y);
        uint4 z = make_uint4(__byte_perm(y[0], y[1], 0x5410), __byte_perm(y[2], y[3], 0x5410), __byte_perm(y[0], y[1], 0x7632),
                             __byte_perm(y[2], y[3], 0x7632));
        if (there) *(uint4*)(to + 8 * (i + 2 * (threadIdx.x % 4))) = z;
    }
}

// q, k: [tokens, heads * HEAD]; v the same, in 8 bits [heads * HEAD, tokens], see values_across.cu. Attention to the keys
// is written to out, bf16 [queries, heads * HEAD]. In 8 bits q, k and v are multiplied by their scales, and `mean` is added
// to v. If `reach`, an upper bound of the results, is given, out is in 8 bits too, to be multiplied by `token_scales`. With
// `unlike`, the key at this index stands for itself and all keys after it. Several parts use `results`, float4 [shared
// tiles, parts, WARPS, RESULTS, 32], and `stored_parts` [shared tiles, WARPS], zeros.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(WARPGROUP * (ATTENDING + 1), 1)
attend(const __grid_constant__ Map q, const __grid_constant__ Map k, const __grid_constant__ Map v, void* out, float4* results,
       int* stored_parts, const float* scale_q, const float* scale_k, const float* scale_v, const float* mean, const float* shares,
       const int* unlike, const float* reach, float* token_scales, int slots, int queries, int keys, int heads, int parts) {
    extern __shared__ u8 unaligned[];
    u32 q_at = ((u32)__cvta_generic_to_shared(unaligned) + 1023) & ~1023u, k_at = q_at + QUERY_TILES * QUERY_BYTES;
    u32 v_at = k_at + STAGES * TILE_BYTES, q_full = v_at + STAGES * TILE_BYTES, q_free = q_full + 8 * QUERY_TILES;
    u32 k_full = q_free + 8 * QUERY_TILES, k_free = k_full + 8 * STAGES, v_full = k_free + 8 * STAGES, v_free = v_full + 8 * STAGES;
    keys = seen_keys(shares, slots, keys);
    float factor = (BYTES == 1 ? *scale_q * *scale_k : 1.f) * (0.08838834764831845f * LOG2_E);  // 1 / sqrt(HEAD)
    int all_keys = keys;
    if (unlike) keys = min(keys, *unlike + 1);
    Division d = divide(queries, keys, heads, parts);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 8 * QUERY_TILES; i += 8) init(q_full + i, 1), init(q_free + i, ATTENDING);
        for (int i = 0; i < 8 * STAGES; i += 8)
            init(k_full + i, 1), init(v_full + i, 1), init(k_free + i, ATTENDING * CLUSTER), init(v_free + i, ATTENDING * CLUSTER);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    meet_cluster();
    u32 done = 0, taken = 0;  // tiles of keys and of queries so far
    int number = blockIdx.x / CLUSTER, rank = rank_in_cluster();
    Work work;

    if (threadIdx.x < WARPGROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        auto load_half = [&](u32 to, const Map* from, int column, int key, u32 full) {
            for (int half = 0; half < CLUSTER; half++) {
                u32 there = to + half * (TILE / CLUSTER) * ROW;
                if (!work.together) load(there, from, column, key + half * (TILE / CLUSTER), full);
                else if (half == rank) load_for_both(there, from, column, key + half * (TILE / CLUSTER), full);
            }
        };
        for (; threadIdx.x == 0 && take(work, number, rank, d); number += gridDim.x / CLUSTER, taken++) {
            int column = min(work.tile, d.tiles - 1) / d.rows * HEAD * BYTES;
            u32 place = taken % QUERY_TILES, to = q_at + place * QUERY_BYTES, full = q_full + 8 * place;
            wait_for(q_free + 8 * place, taken / QUERY_TILES & 1 ^ 1);  // the phase before the first counts as complete
            announce(full, QUERY_BYTES);
            for (int row = 0; row < ROWS_OF_HEAD; row++)
                load(to + row * QUERIES * ROW, &q, column + row * ROW, work.tile % d.rows * QUERIES, full);
            #pragma unroll 1
            for (int i = 0; i < work.count; i++, done++) {
                u32 stage = done % STAGES, phase = done / STAGES & 1 ^ 1, at = stage * TILE_BYTES;
                int key = (work.first + i) * TILE;
                wait_for(k_free + 8 * stage, phase);
                announce(k_full + 8 * stage, TILE_BYTES);
                for (int row = 0; row < ROWS_OF_HEAD; row++)
                    load_half(k_at + at + row * TILE * ROW, &k, column + row * ROW, key, k_full + 8 * stage);
                wait_for(v_free + 8 * stage, phase);
                announce(v_full + 8 * stage, TILE_BYTES);
                for (int row = 0; BYTES == 1 && row < TILE / VALUES_ROW; row++) {
                    u32 there = v_at + at + row * VALUES_ROW * HEAD;
                    if (!work.together) load(there, &v, key + row * VALUES_ROW, column, v_full + 8 * stage);
                    else if ((row + i) % CLUSTER == rank) load_for_both(there, &v, key + row * VALUES_ROW, column, v_full + 8 * stage);
                }
                for (int row = 0; BYTES == 2 && row < ROWS_OF_HEAD; row++)
                    load_half(v_at + at + row * TILE * ROW, &v, column + row * ROW, key, v_full + 8 * stage);
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
    int group = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0) - 1;  // tells the compiler that it is uniform in a warp
    int thread = threadIdx.x % WARPGROUP;
    float result[HEAD / 2];
    Softmax softmax = {fmaxf(factor, LEAST_FACTOR)};
    u32 numerators[NUMERATORS];

    auto wait_for_keys = [&](u32 tile) { wait_for(k_full + 8 * (tile % STAGES), tile / STAGES & 1); };
    auto wait_for_values = [&](u32 tile) { wait_for(v_full + 8 * (tile % STAGES), tile / STAGES & 1); };
    auto read = [&](u32 free) { if (CLUSTER == 1 && thread == 0) arrive(free); else if (CLUSTER == 2 && thread < 2) arrive(free, thread); };
    auto keys_read = [&](u32 tile) { read(k_free + 8 * (tile % STAGES)); };
    auto values_read = [&](u32 tile) { read(v_free + 8 * (tile % STAGES)); };
    auto multiply_keys = [&]() {
        u64 q_matrix = matrix(q_at + taken % QUERY_TILES * QUERY_BYTES + group * ROWS * ROW, 8 * ROW, 1);
        u64 k_matrix = matrix(k_at + done % STAGES * TILE_BYTES, 8 * ROW, 1);
        begin_products();
        first_product(softmax.scores, q_matrix, k_matrix);
        #pragma unroll
        for (int i = 1; i < ROWS_OF_HEAD * STEPS; i++) {
            int row = i / STEPS * ROW, in_row = i % STEPS * STEP;
            next_product(softmax.scores, q_matrix + (row * QUERIES + in_row) / 16, k_matrix + (row * TILE + in_row) / 16);
        }
        end_products();
    };
    auto multiply_values = [&](u32 tile) {
        wait_for_values(tile);
        u32 at = v_at + tile % STAGES * TILE_BYTES;
        u64 v_matrix = BYTES == 1 ? matrix(at, 8 * VALUES_ROW, 3) : matrix(at, 8 * ROW, 1, TILE * ROW);
        begin_products();
        #pragma unroll
        for (int i = 0; i < TILE / STEP_KEYS; i++)
            add_values(result, numerators + 4 * i, v_matrix + i * STEP_KEYS * (BYTES == 1 ? HEAD : ROW) / 16);
        end_products();
    };

    auto queries_read = [&]() { if (thread == 0) arrive(q_free + 8 * (taken % QUERY_TILES)); };
    auto meet_group = [&]() { asm volatile("bar.sync %0, 128;" :: "r"(group + 1) : "memory"); };

    for (; take(work, number, rank, d); number += gridDim.x / CLUSTER, taken++) {
        wait_for(q_full + 8 * (taken % QUERY_TILES), taken / QUERY_TILES & 1);
        if (work.tile >= d.tiles || work.tile % d.rows * QUERIES + group * ROWS >= queries) {  // this warpgroup has none
            // Its warps synchronize twice. First, because a warp that adds parts up is late and would wait for a phase of
            // queries that is long over. Then, so that no warp waits for a phase of keys that is long over.
            meet_group();
            for (u32 tile = done; thread < CLUSTER && tile < done + work.count; tile++) {
                wait_for_keys(tile);
                keys_read(tile);
                wait_for_values(tile);
                values_read(tile);
            }
            done += work.count;
            queries_read();
            meet_group();
            continue;
        }
        int left = keys - work.first * TILE;
        #pragma unroll
        for (int i = 0; i < HEAD / 2; i++) result[i] = 0.f;
        softmax.begin();
        wait_for_keys(done);
        multiply_keys();
        wait_for_products<0>(), made(softmax.scores);
        keys_read(done++);
        softmax.hide_behind(left);
        if (unlike) softmax.count_last(left, all_keys - keys + 1);
        softmax.soften();
        softmax.round_off(numerators);
        if (work.count > 1) wait_for_keys(done);
        for (int i = 1; i < work.count; i++) {
            multiply_keys();
            multiply_values(done - 1);
            wait_for_products<1>(), made(softmax.scores);
            keys_read(done++);
            if (i == work.count - 1) {
                softmax.hide_behind(left - i * TILE);
                if (unlike) softmax.count_last(left - i * TILE, all_keys - keys + 1);
            }
            softmax.soften();
            // Sums are never negative. Reading them here makes the compiler add them up before it waits.
            bool shrinks = __any_sync(~0u, softmax.shrink[0] + softmax.shrink[1] < 2.f || softmax.sum[0] + softmax.sum[1] < 0.f);
            if (i + 1 < work.count) wait_for_keys(done);  // a loop, across which the compiler moves no exponentials
            wait_for_products<0>(), made(result);
            values_read(done - 2);
            if (shrinks)
                #pragma unroll
                for (int j = 0; j < HEAD / 2; j++) result[j] *= softmax.shrink[j / 2 % 2];
            softmax.round_off(numerators);
        }
        queries_read();
        multiply_values(done - 1);
        wait_for_products<0>(), made(result);
        values_read(done - 1);

        int warp = threadIdx.x / 32 - WARPGROUP / 32;
        float (&sum)[2] = softmax.sum;
        if (work.part >= 0 && !summed(result, sum, softmax.taken(0), softmax.taken(1), results, stored_parts, d, work, warp)) continue;
        int head = work.tile / d.rows;
        #pragma unroll
        for (int row = 0; row < 2; row++) {
            sum[row] += __shfl_xor_sync(~0u, sum[row], 1);
            sum[row] += __shfl_xor_sync(~0u, sum[row], 2);
            int query = work.tile % d.rows * QUERIES + warp * 16 + threadIdx.x % 32 / 4 + 8 * row;
            bool there = query < queries;
            float scale = (BYTES == 1 ? *scale_v : 1.f) / sum[row];
            u64 at = (u64)query * heads * HEAD + head * HEAD;
            if (BYTES == 1)
                #pragma unroll
                for (int i = 0; i < HEAD / 4; i++) {
                    float& x = result[i / 2 * 4 + 2 * row + i % 2];
                    x = fmaf(x, scale, mean[head * HEAD + i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2]);
                }
            if (BYTES == 1 && reach) {
                if (there && head == 0 && threadIdx.x % 4 == 0) token_scales[query] = *reach / LARGEST;
                store_8_bits((u8*)out + at, result, row, LARGEST / *reach, there);
            } else store_16_bits((u16*)out + at, result, row, BYTES == 1 ? 1.f : scale, there);
        }
    }
    meet_cluster();  // no block ends while the other one arrives at its barriers
}
