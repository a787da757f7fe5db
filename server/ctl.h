/* The commands of torchnative-ctl that have a file of their own: each takes the arguments from its own name on and
 * gives the program's exit code. */
#ifndef TN_SERVER_CTL_H
#define TN_SERVER_CTL_H

enum { TN_CTL_DONE = 0, TN_CTL_FAILED = 1, TN_CTL_USAGE = 2 };

int ctl_dp(int argc, char **argv);

#endif
