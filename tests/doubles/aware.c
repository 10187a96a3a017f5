/* Preloaded before any MPI: it then says that it is CUDA-aware, and it is, for the memory of these GPUs is the host's. */
int MPIX_Query_cuda_support(void) { return 1; }

/* Open MPI's opal_cuda_support, the one control variable that is asked for; KNOB: DOUBLE_MPI_CUDA=0 switches it off. */
extern char *getenv(const char *name);
int MPI_T_cvar_read(void *handle, void *value) {
  const char *off = getenv("DOUBLE_MPI_CUDA");
  (void)handle;
  *(int *)value = !(off && *off == '0');
  return 0;
}
