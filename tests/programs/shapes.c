/* Wide, odd and masked stores; each kind runs only where the processor has it. */
#include <immintrin.h>
#include <stdio.h>
#include <string.h>

_Alignas(64) int lanes[64];
_Alignas(64) double sources[16];
int kinds;

__attribute__((noinline)) void ready(void)
{
	__asm__ volatile("");
}

static void sse(void)
{
	_mm_store_si128((__m128i *)&lanes[4], _mm_set1_epi32(1));
	_mm_storeu_si128((__m128i *)((char *)&lanes[4] + 2), _mm_set1_epi32(2));
	_mm_stream_si128((__m128i *)&lanes[4], _mm_set1_epi32(3));
	_mm_storel_epi64((__m128i *)&lanes[5], _mm_set1_epi32(4));
	_mm_maskmoveu_si128(_mm_set1_epi8(5), _mm_set_epi8(0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, -1, 0, 0, 0, 0),
			    (char *)&lanes[4]);
	_mm_stream_si32(&lanes[5], 6);
	__asm__ volatile("fldpi\n\tfstpl %0" : "=m"(sources[1]));
	__asm__ volatile("fldpi\n\tfstpt %0" : "=m"(lanes[4]));
	kinds |= 1;
}

__attribute__((target("avx2"))) static void avx(void)
{
	_mm256_store_si256((__m256i *)lanes, _mm256_set1_epi32(7));
	_mm256_maskstore_epi32(lanes, _mm256_set_epi32(0, 0, -1, 0, 0, 0, 0, 0), _mm256_set1_epi32(8));
	_mm256_maskstore_epi32(lanes, _mm256_set_epi32(-1, -1, 0, -1, -1, -1, -1, -1), _mm256_set1_epi32(9));
	__m256i gathered = _mm256_i32gather_epi32(lanes, _mm256_set_epi32(0, 1, 2, 3, 4, 5, 6, 7), 4);
	lanes[40] = _mm256_extract_epi32(gathered, 2);
	_mm256_zeroupper();
	kinds |= 2;
}

__attribute__((target("avx512f"))) static void avx512(void)
{
	_mm512_store_si512(lanes, _mm512_set1_epi32(10));
	_mm512_mask_storeu_epi32(lanes, 1 << 5, _mm512_set1_epi32(11));
	_mm512_mask_storeu_epi32(lanes, 0xffff & ~(1 << 5), _mm512_set1_epi32(12));
	_mm512_i32scatter_epi32(lanes, _mm512_setr_epi32(32, 33, 34, 35, 36, 37, 38, 5, 48, 49, 50, 51, 52, 53, 54, 55),
				_mm512_set1_epi32(13), 4);
	_mm512_mask_compressstoreu_epi32(&lanes[4], 0x0101, _mm512_set1_epi32(14));
	kinds |= 4;
}

int main(void)
{
	unsigned long sum = 0;

	ready();
	sse();
	if (__builtin_cpu_supports("avx2"))
		avx();
	if (__builtin_cpu_supports("avx512f"))
		avx512();
	for (int i = 0; i < 64; i++)
		sum = sum * 31 + (unsigned)lanes[i];
	printf("shapes: kinds %d, lane %d, checksum %016lx\n", kinds, lanes[5], sum);
	return 0;
}
