// The softmax of attention.cu for scores in fp16, two in a register, so that most instructions compute two. Numerators
// become float8_e4m3, so fp16 is precise enough. The producer of queries and keys ensures that no score overflows.

constexpr int PAIRS = TILE / 4;
typedef u32 Scores[PAIRS];
constexpr float RAISED = 8.f, LEAST_FACTOR = 1e-6f;  // numerators are at most 2^RAISED; a factor fits fp16
constexpr u32 LEAST = 0xFBFFFBFF, HIDDEN = 0xFC00, SIGNS = 0x80008000;  // the smallest numbers, and minus infinity

INLINE u32 both(float x) { return fp16(x, x); }
INLINE u32 fma2(u32 x, u32 y, u32 z) { u32 out; asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(x), "r"(y), "r"(z)); return out; }
INLINE u32 add2(u32 x, u32 y) { u32 out; asm("add.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(x), "r"(y)); return out; }
INLINE u32 max2(u32 x, u32 y) { u32 out; asm("max.f16x2 %0, %1, %2;" : "=r"(out) : "r"(x), "r"(y)); return out; }
INLINE u32 power2(u32 x) { u32 out; asm("ex2.approx.f16x2 %0, %1;" : "=r"(out) : "r"(x)); return out; }
INLINE u32 fp8_of(u32 x, u32 y) {
    u32 out;
    asm("{\n.reg .b16 a, b;\ncvt.rn.satfinite.e4m3x2.f16x2 a, %1;\ncvt.rn.satfinite.e4m3x2.f16x2 b, %2;\nmov.b32 %0, {a, b};\n}"
        : "=r"(out) : "r"(x), "r"(y));
    return out;
}

// The state of a thread, which has scores of two rows: the row of pair i is i % 2, its first key i / 2 * 8 + lane % 4 * 2.
struct Softmax {
    float factor;  // from scores to exponents of 2
    Scores scores;
    float sum[2], shrink[2];  // of numerators; and the factors for earlier results
    u32 most;                 // of both rows
    float2 less;              // the term added to their exponents, rounded to fp16, so that numerators of all tiles match

    INLINE void begin() { most = LEAST, less = make_float2(1e30f, 1e30f), sum[0] = sum[1] = 0.f; }
    // Hides the scores after the last key.
    INLINE void hide_behind(int keys) {
        if (keys < TILE)
            #pragma unroll
            for (int i = 0; i < PAIRS; i++) {
                int first = i / 2 * 8 + threadIdx.x % 4 * 2;
                if (first >= keys) scores[i] = HIDDEN;
                if (first + 1 >= keys) scores[i] = scores[i] & 0xFFFF | HIDDEN << 16;
            }
    }
    INLINE void count_last(int, int) {}  // attention to a prompt is not in 8 bits
    // Returns the largest scores so far of the rows that four threads share.
    INLINE u32 largest() {
        u32 rows[2] = {scores[0], scores[1]};
        #pragma unroll
        for (int i = 2; i + 2 < PAIRS; i += 4)
            #pragma unroll
            for (int row = 0; row < 2; row++) rows[row] = max2(max2(scores[i + row], scores[i + 2 + row]), rows[row]);
        #pragma unroll
        for (int row = 0; row < 2; row++) rows[row] = max2(scores[PAIRS - 2 + row], rows[row]);
        u32 now = max2(max2(__byte_perm(rows[0], rows[1], 0x5410), __byte_perm(rows[0], rows[1], 0x7632)), most);
        now = max2(now, __shfl_xor_sync(~0u, now, 1));
        return max2(now, __shfl_xor_sync(~0u, now, 2));
    }
    // Turns scores into numerators.
    INLINE void soften() {
        most = largest();
        u32 factors = both(factor), lesser = fma2(most, factors ^ SIGNS, both(RAISED));
        float2 before = less;
        less = from_fp16(lesser);
        shrink[0] = power(less.x - before.x), shrink[1] = power(less.y - before.y);
        u32 of_row[2] = {__byte_perm(lesser, lesser, 0x1010), __byte_perm(lesser, lesser, 0x3232)};
        #pragma unroll
        for (int i = 0; i < PAIRS; i++) scores[i] = power2(fma2(scores[i], factors, of_row[i % 2]));
        #pragma unroll
        for (int row = 0; row < 2; row++) {
            float2 added = from_fp16(added_up(row));
            sum[row] = fmaf(sum[row], shrink[row], added.x + added.y);
        }
    }
    // Returns the sum of a row's numerators, in four chains, each rounded to fp16 at every step.
    INLINE u32 added_up(int row) {
        u32 chains[4];
        #pragma unroll
        for (int i = 0; i < PAIRS / 2; i++) chains[i % 4] = i < 4 ? scores[2 * i + row] : add2(chains[i % 4], scores[2 * i + row]);
        return add2(add2(chains[0], chains[1]), add2(chains[2], chains[3]));
    }
    INLINE void round_off(u32 (&numerators)[NUMERATORS]) {
        #pragma unroll
        for (int i = 0; i < NUMERATORS; i++) {
            int at = 8 * (i / 4) + 4 * (i / 2 % 2) + i % 2;
            numerators[i] = fp8_of(scores[at], scores[at + 2]);
        }
    }
    // Returns the subtracted exponent of 2.
    INLINE float taken(int row) { return -(row ? less.y : less.x); }
};
