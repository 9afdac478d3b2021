/* Threads, descriptors and mappings are given back, however a communicator ends. */
#include "check.h"

#include <dirent.h>

static int entries(const char* folder) {
  int count = 0;
  DIR* open = opendir(folder);
  CHECK(open);
  while (readdir(open)) count++;
  closedir(open);
  return count;
}

static int mappings(void) {
  int count = 0, c;
  FILE* maps = fopen("/proc/self/maps", "r");
  CHECK(maps);
  while ((c = fgetc(maps)) != EOF) count += c == '\n';
  fclose(maps);
  return count;
}

static void round_of_everything(void) {
  ncclComm_t alone, comms[3], parts[3], unmade[2] = {NULL, NULL};
  ncclUniqueId id;
  int64_t values[3][4] = {{0}};
  OK(ncclCommInitAll(&alone, 1, NULL));
  OK(ncclAllReduce(values[0], values[1], 4, ncclInt64, ncclSum, alone, NULL));
  OK(ncclCommDestroy(alone));
  OK(ncclCommInitAll(comms, 3, NULL));
  OK(ncclGroupStart());
  for (int rank = 0; rank < 3; rank++) OK(ncclCommSplit(comms[rank], 0, rank, &parts[rank], NULL));
  OK(ncclGroupEnd());
  for (int kind = 0; kind < 2; kind++) {
    ncclComm_t* used = kind ? parts : comms;
    OK(ncclGroupStart());
    for (int rank = 0; rank < 3; rank++)
      OK(ncclAllReduce(values[rank], values[rank], 4, ncclInt64, ncclSum, used[rank], NULL));
    OK(ncclGroupEnd());
  }
  /* A group that fails: its communicators never come to be. The id is not one's own to make here, as
     its meeting would be held open for ranks that may still come. */
  memset(&id, 0, sizeof id);
  OK(ncclGroupStart());
  OK(ncclAllReduce(values[0], values[0], 4, ncclInt64, ncclSum, comms[0], NULL));
  EXPECT(ncclInvalidArgument, ncclCommInitRank(&unmade[0], 2, id, 0));
  EXPECT(ncclInvalidArgument, ncclGroupEnd());
  /* A call that fails, and then an abort. */
  OK(ncclGroupStart());
  for (int rank = 0; rank < 3; rank++)
    OK(ncclAllReduce(values[rank], values[rank], rank ? 4 : 3, ncclInt64, ncclSum, parts[rank], NULL));
  EXPECT(ncclInvalidUsage, ncclGroupEnd());
  for (int rank = 0; rank < 3; rank++) {
    OK(ncclCommAbort(parts[rank]));
    OK(ncclCommDestroy(comms[rank]));
  }
}

int main(void) {
  limit();
  for (int warm = 0; warm < 2; warm++) round_of_everything();
  pause_ms(200);
  int threads_then = entries("/proc/self/task"), files_then = entries("/proc/self/fd");
  int maps_then = mappings();
  for (int round = 0; round < 8; round++) round_of_everything();
  /* Threads end a moment after their last word; the limit ends this if they never do. */
  while (entries("/proc/self/task") > threads_then || entries("/proc/self/fd") > files_then)
    pause_ms(10);
  int grown = mappings() - maps_then; /* malloc's arenas may be some */
  if (grown > 40) FAIL("%d mappings more than before", grown);
  return 0;
}
