/* Client ids: what may stand in a log line, a file name and a metric's label without quoting. */
#include <string.h>

#include "fed/fed.h"

static bool letter_or_digit(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool tn_id_valid(const char *id) {
    size_t n = strnlen(id, TN_ID_MAX + 1);

    if (n == 0 || n > TN_ID_MAX || !letter_or_digit(id[0]))
        return false;
    for (size_t i = 1; i < n; i++) {
        if (!letter_or_digit(id[i]) && id[i] != '.' && id[i] != '-' && id[i] != '_')
            return false;
    }
    return true;
}
