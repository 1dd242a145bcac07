#include "src/commands/main.h"

int main(int argc, char** argv) { return tandem::main(argc, argv); }
