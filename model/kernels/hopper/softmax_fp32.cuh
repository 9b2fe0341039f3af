// The softmax of attention.cu for scores in fp32.

typedef float Scores[TILE / 2];
constexpr int SCORES = TILE / 2;
constexpr float LEAST = -1e30f, LEAST_FACTOR = 1e-20f;  // so hidden scores stay hidden if all scores are 0

INLINE int bits(float x) { return __float_as_int(x); }

// The state of a thread, which has scores of two rows: the row of score i is i / 2 % 2, its key i / 4 * 8 + lane % 4 * 2 +
// i % 2.
struct Softmax {
    float factor;  // from scores to exponents of 2
    Scores scores;
    float sum[2], shrink[2];  // of numerators; and the factors for earlier results
    float most[2];

    INLINE void begin() { most[0] = most[1] = LEAST, sum[0] = sum[1] = 0.f; }
    // Hides the scores after the last key.
    INLINE void hide_behind(int keys) {
        if (keys < TILE)
            #pragma unroll
            for (int i = 0; i < SCORES; i++)
                if (i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2 >= keys) scores[i] = LEAST;
    }
    // Lets the last key stand for several equal ones: the logarithm of their number is added to its scores.
    INLINE void count_last(int keys, int like_it) {
        float more = log2f(like_it) / factor;
        #pragma unroll
        for (int i = 0; i < SCORES; i++)
            if (i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2 == keys - 1) scores[i] += more;
    }
    // Returns the largest score so far of a row that four threads share. If the earlier maximum was not negative, integers
    // are compared, because one instruction computes the maximum of three.
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
    // Turns scores into numerators.
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
    // Returns the subtracted exponent of 2.
    INLINE float taken(int row) { return most[row] * factor; }
};
