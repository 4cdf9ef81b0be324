/* A checkpoint of many ranks in one file, as simulations write them: records of an odd length, dealt out to the ranks in turns, so that
 * no record begins where a page or chunk does and neighbours belong to different ranks.
 *
 * checkpoint RECORDS BYTES PATH...: rank R opens the (R mod number of paths)-th path, which all lead to one file, writes every record
 * that is its own, half of them in collective calls, and then reads those of the next rank through its own path.
 * Byte I of record N is (N * 31 + I * 7) mod 251. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *what, int code) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code != MPI_SUCCESS) {
        MPI_Error_string(code, text, &length);
    }
    fprintf(stderr, "checkpoint: %s: %s\n", what, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void fill(unsigned char *buffer, long record, int bytes) {
    for (long at = 0; at < bytes; at++) {
        buffer[at] = (unsigned char)((record * 31 + at * 7) % 251);
    }
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks, code;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 4) {
        fail("usage: checkpoint RECORDS BYTES PATH...", MPI_SUCCESS);
    }
    long records = atol(argv[1]);
    int bytes = atoi(argv[2]);
    const char *path = argv[3 + rank % (argc - 3)];
    unsigned char *wanted = malloc((size_t)bytes), *seen = malloc((size_t)bytes);
    if (wanted == NULL || seen == NULL || records % ranks != 0) {
        fail("no memory, or ranks that do not share the records evenly", MPI_SUCCESS);
    }
    MPI_File file;
    code = MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    if (code != MPI_SUCCESS) {
        fail("open", code);
    }
    for (long round = 0; round < records / ranks; round++) {
        long record = round * ranks + rank;
        MPI_Offset at = (MPI_Offset)record * bytes;
        MPI_Status status;
        int count = 0;
        fill(wanted, record, bytes);
        code = round % 2 == 0 ? MPI_File_write_at_all(file, at, wanted, bytes, MPI_BYTE, &status)
                              : MPI_File_write_at(file, at, wanted, bytes, MPI_BYTE, &status);
        if (code != MPI_SUCCESS || MPI_Get_count(&status, MPI_BYTE, &count) != MPI_SUCCESS || count != bytes) {
            fail("write", code);
        }
    }
    code = MPI_File_sync(file);
    if (code != MPI_SUCCESS) {
        fail("sync", code);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (long round = 0; round < records / ranks; round++) {
        long record = round * ranks + (rank + 1) % ranks;
        MPI_Offset at = (MPI_Offset)record * bytes;
        MPI_Status status;
        int count = 0;
        fill(wanted, record, bytes);
        code = MPI_File_read_at(file, at, seen, bytes, MPI_BYTE, &status);
        if (code != MPI_SUCCESS || MPI_Get_count(&status, MPI_BYTE, &count) != MPI_SUCCESS || count != bytes) {
            fail("read", code);
        }
        if (memcmp(wanted, seen, (size_t)bytes) != 0) {
            fprintf(stderr, "checkpoint: rank %d sees other bytes in record %ld\n", rank, record);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
    code = MPI_File_close(&file);
    if (code != MPI_SUCCESS) {
        fail("close", code);
    }
    MPI_Finalize();
    return 0;
}
