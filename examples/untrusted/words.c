/* A small program: says who it is, counts the words of its input, and writes a file if it may. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int main(int argc, char **argv) {
  printf("hello from %s with %d argument(s)\n", argv[0], argc - 1);
  for (int i = 1; i < argc; i++)
    printf("  %d: %s\n", i, argv[i]);

  int words = 0, in_word = 0, c;
  while ((c = getchar()) != EOF) {
    int is_space = strchr(" \t\r\n", c) != NULL;
    words += !is_space && !in_word;
    in_word = !is_space;
  }
  printf("words read: %d\n", words);
  printf("seconds since 1970: %lld\n", (long long)time(NULL));

  FILE *file = fopen("count.txt", "w");
  if (file == NULL) {
    fprintf(stderr, "no file for the count: there is no directory\n");
    return argc > 1 && strcmp(argv[1], "fail") == 0 ? 3 : 0;
  }
  fprintf(file, "%d\n", words);
  fclose(file);
  return 0;
}
