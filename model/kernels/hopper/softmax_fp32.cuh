// The softmax of attention.cu, of scores in fp32.

typedef float Scores[TILE / 2];
constexpr int SCORES = TILE / 2;
constexpr float LEAST = -1e30f, LEAST_FACTOR = 1e-20f;  // with that what is hidden stays hidden where all scores are 0

INLINE int bits(float x) { return __float_as_int(x); }

// Of a thread, which has scores of two rows: of score i the row is i / 2 % 2, the key i / 4 * 8 + lane % 4 * 2 + i % 2.
struct Softmax {
    float factor;  // that scores are multiplied by to become exponents of 2
    Scores scores;
    float sum[2], shrink[2];  // of numerators; and what those of before are to be multiplied by
    float most[2];

    INLINE void begin() { most[0] = most[1] = LEAST, sum[0] = sum[1] = 0.f; }
    // Those behind the last key are hidden.
    INLINE void hide_behind(int keys) {
        if (keys < TILE)
            #pragma unroll
            for (int i = 0; i < SCORES; i++)
                if (i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2 >= keys) scores[i] = LEAST;
    }
    // The last key stands for several like it: the logarithm of how many is added to its scores.
    INLINE void count_last(int keys, int like_it) {
        float more = log2f(like_it) / factor;
        #pragma unroll
        for (int i = 0; i < SCORES; i++)
            if (i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2 == keys - 1) scores[i] += more;
    }
    // The largest score of a row, which four threads have, and of those before. Where that was not negative, integers are
    // compared: there is an instruction for the largest of three.
    INLINE float largest(int row, float before, bool positive) {
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
    // Scores become numerators.
    INLINE void soften() {
        bool positive = __all_sync(~0u, most[0] >= 0.f && most[1] >= 0.f);
        float less[2], added[4] = {0.f, 0.f, 0.f, 0.f};
        #pragma unroll
        for (int row = 0; row < 2; row++) {
            float now = largest(row, most[row], positive);
            shrink[row] = power((most[row] - now) * factor);
            most[row] = now;
            less[row] = -now * factor;
        }
        #pragma unroll
        for (int i = 0; i < SCORES; i++) {
            scores[i] = power(fmaf(scores[i], factor, less[i / 2 % 2]));
            added[i % 4] += scores[i];
        }
        #pragma unroll
        for (int row = 0; row < 2; row++) sum[row] = fmaf(sum[row], shrink[row], added[2 * row] + added[2 * row + 1]);
    }
    INLINE void round_off(u32 (&numerators)[NUMERATORS]) {
        #pragma unroll
        for (int i = 0; i < NUMERATORS; i++) numerators[i] = bf16(scores[2 * i], scores[2 * i + 1]);
    }
    // The exponent of 2 that was taken off.
    INLINE float taken(int row) { return most[row] * factor; }
};
