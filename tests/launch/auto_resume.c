// Stands for HyperPod's plugin of Slurm: srun takes --auto-resume=N and writes N to $AUTO_RESUME_SEEN, if that is set.
#include <slurm/spank.h>
#include <stdio.h>
#include <stdlib.h>

SPANK_PLUGIN(auto_resume, 1)

static int taken(int value, const char* argument, int remote) {
  const char* path = getenv("AUTO_RESUME_SEEN");
  FILE* file = remote || path == NULL ? NULL : fopen(path, "w");
  if (file == NULL) return 0;
  fprintf(file, "%s\n", argument);
  return fclose(file);
}

int slurm_spank_init(spank_t spank, int argc, char** argv) {
  struct spank_option option = {"auto-resume", "N", "repairs hosts", 1, 0, taken};
  return spank_context() == S_CTX_ALLOCATOR ? 0 : spank_option_register(spank, &option);
}
