/* The total is wrong at the end, although only add() should write it. To find the other writer:
 *
 *   (gdb) watch game.total
 *   (gdb) continue      ... until the store comes from reset_scores()
 */
#include <stdio.h>

static struct {
	int scores[4];
	int total;
} game = { { 3, 1, 4, 1 }, 0 };
#define total game.total

static void add(int points)
{
	total += points;
}

static void reset_scores(int players)
{
	for (int i = 0; i <= players; i++) /* one too far */
		game.scores[i] = 0;
}

int main(void)
{
	for (int i = 0; i < 4; i++)
		add(game.scores[i]);
	reset_scores(4);
	add(5);
	printf("total %d (should be 14)\n", total);
	return 0;
}
