/* What every program here needs: checks that end it, and an end for those that hang. */
#ifndef CHECK_H_
#define CHECK_H_

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "nccl.h"

#define SECONDS_MAX 120

#define FAIL(...)                                            \
  do {                                                       \
    fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);          \
    fprintf(stderr, __VA_ARGS__);                            \
    fprintf(stderr, "\n");                                   \
    _exit(1);                                                \
  } while (0)

#define CHECK(condition)                                     \
  do {                                                       \
    if (!(condition)) FAIL("not so: %s (last error: %s)", #condition, ncclGetLastError(NULL)); \
  } while (0)

/* The call must return this code. */
#define EXPECT(code, call)                                   \
  do {                                                       \
    ncclResult_t got_ = (call);                              \
    if (got_ != (code))                                      \
      FAIL("%s is %d (%s), not %s; last error: %s", #call, got_, ncclGetErrorString(got_), #code, \
           ncclGetLastError(NULL));                          \
  } while (0)

#define OK(call) EXPECT(ncclSuccess, call)

/* The call must return this code, and the last error must have these words. */
#define REFUSED(code, words, call)                           \
  do {                                                       \
    EXPECT(code, call);                                      \
    if (!strstr(ncclGetLastError(NULL), words))              \
      FAIL("%s: the last error is \"%s\", without \"%s\"", #call, ncclGetLastError(NULL), words); \
  } while (0)

/* Ends the program, with its children, if it hangs. */
__attribute__((unused)) static void limit(void) { alarm(SECONDS_MAX); }

__attribute__((unused)) static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

__attribute__((unused)) static void pause_ms(long ms) {
  struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&pause, NULL);
}

/* Waits until a communicator that does not block is done; what became of it. */
__attribute__((unused)) static ncclResult_t settled(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    OK(ncclCommGetAsyncError(comm, &state));
    pause_ms(1);
  }
  return state;
}

/* Runs ranks as processes of their own: the id comes from rank 0. Each ends with 0, but for one
   that is killed (-1: none). */
__attribute__((unused)) static void processes(
    int ranks, int killed, void (*body)(int rank, int ranks, ncclUniqueId id)) {
  int pipes[64][2];
  pid_t children[64];
  CHECK(ranks <= 64);
  for (int rank = 0; rank < ranks; rank++) CHECK(pipe(pipes[rank]) == 0);
  for (int rank = 0; rank < ranks; rank++) {
    children[rank] = fork();
    CHECK(children[rank] >= 0);
    if (children[rank] == 0) {
      ncclUniqueId id;
      limit();
      if (rank == 0) {
        OK(ncclGetUniqueId(&id));
        for (int other = 1; other < ranks; other++)
          CHECK(write(pipes[other][1], &id, sizeof id) == (ssize_t)sizeof id);
      } else {
        CHECK(read(pipes[rank][0], &id, sizeof id) == (ssize_t)sizeof id);
      }
      body(rank, ranks, id);
      _exit(0);
    }
  }
  for (int rank = 0; rank < ranks; rank++) {
    int status = 0;
    CHECK(waitpid(children[rank], &status, 0) == children[rank]);
    if (rank == killed) {
      CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    } else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      for (int other = rank + 1; other < ranks; other++) kill(children[other], SIGKILL);
      FAIL("rank %d ended with status %#x", rank, (unsigned)status);
    }
  }
}

/* Runs ranks as threads of this process. */
struct thread_ {
  int rank, ranks;
  ncclUniqueId id;
  void (*body)(int rank, int ranks, ncclUniqueId id);
};

__attribute__((unused)) static void* thread_main_(void* given) {
  struct thread_* self = (struct thread_*)given;
  self->body(self->rank, self->ranks, self->id);
  return NULL;
}

__attribute__((unused)) static void threads(
    int ranks, void (*body)(int rank, int ranks, ncclUniqueId id)) {
  pthread_t started[64];
  struct thread_ all[64];
  ncclUniqueId id;
  CHECK(ranks <= 64);
  OK(ncclGetUniqueId(&id));
  for (int rank = 0; rank < ranks; rank++) {
    all[rank].rank = rank;
    all[rank].ranks = ranks;
    all[rank].id = id;
    all[rank].body = body;
    CHECK(pthread_create(&started[rank], NULL, thread_main_, &all[rank]) == 0);
  }
  for (int rank = 0; rank < ranks; rank++) CHECK(pthread_join(started[rank], NULL) == 0);
}

#endif
