/* The paragraphs of a text that are long enough to count as repeats: runs of lines that are not blank. */
#include "words.h"

/* Writes (start, end) in characters of every paragraph of at least min_words words to out [room, 2]; with `comments`
   only of those whose lines all begin with `#`. A paragraph ends behind its last newline. Returns how many; more than
   `room` are counted, not written. */
API i64 overland_paragraphs(const u8 *s, i64 n, i64 min_words, int comments, i64 *out, i64 room) {
    i64 count = 0, begin = -1, words = 0, chars = 0, counted = 0; /* chars: of the bytes before `counted` */
    int fits = 1;
    for (i64 line = 0; line <= n;) {
        const u8 *found = memchr(s + line, '\n', (size_t)(n - line));
        i64 stop = found ? found - s : n, p = line;
        int space;
        while (p < stop && (space = space_at(s + p, s + stop))) p += space;
        int blank = p == stop;
        if (!blank) {
            if (begin < 0) begin = line, words = 0, fits = 1;
            if (comments && s[p] != '#') fits = 0;
            while (fits && p < stop && words < min_words) {
                words++;
                while (p < stop && !space_at(s + p, s + stop)) p++;
                while (p < stop && (space = space_at(s + p, s + stop))) p += space;
            }
        }
        i64 end = blank ? line : n;
        if (begin >= 0 && (blank || !found)) {
            if (fits && words >= min_words) {
                i64 from = chars + chars_in(s + counted, begin - counted), to = from + chars_in(s + begin, end - begin);
                if (count < room) out[2 * count] = from, out[2 * count + 1] = to;
                count++;
                chars = to, counted = end;
            }
            begin = -1;
        }
        line = stop + 1;
    }
    return count;
}
