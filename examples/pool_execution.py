"""A pool of sandboxes that are up already: clean ones in milliseconds, each handed out once.

It runs on the strongest backend that this machine has: containers where there is an engine with the
image, jails where there is none.
"""

import time

import anyio

from ringfence import Pool, PoolConfig, PoolTimeoutError, open_backend


async def main() -> None:
    async with open_backend("auto") as backend:
        # The first one, made on demand, shows what a caller waits for without a pool.
        began = time.perf_counter()
        async with await backend.create() as sandbox:
            print("on", sandbox.backend)
            await sandbox.exec("echo", ["cold"])
            print(f"cold: {(time.perf_counter() - began) * 1e3:.1f} ms")

        config = PoolConfig(max_size=4, max_idle_time=300, factory=backend.create)
        async with Pool(config) as pool:
            await pool.warmup(3)
            print(pool)

            began = time.perf_counter()
            result = await pool.execute("echo", ["warm"], timeout=5)
            print(f"{result.stdout_text.strip()}: {(time.perf_counter() - began) * 1e3:.1f} ms")

            # What one user leaves is never there for the next.
            for user in ("first", "second"):
                async with pool.lease() as sandbox:
                    found = await sandbox.list_files()
                    print(f"the {user} user finds {found.total} files")
                    await sandbox.write_file("secret.txt", f"of the {user} user")

            # Many callers share few sandboxes, and are served in the order in which they come.
            async with anyio.create_task_group() as group:
                for number in range(12):
                    group.start_soon(pool.execute, "echo", [str(number)])
                await anyio.sleep(0.001)
                print("with twelve callers:", pool)
            print("afterwards:", pool)

            # There are never more than `max_size`; a wait for one has an end.
            held = [await pool.acquire() for _ in range(4)]
            try:
                await pool.acquire(timeout=0.2)
            except PoolTimeoutError as error:
                print("a fifth one:", error)
            for sandbox in held:
                await pool.release(sandbox)


if __name__ == "__main__":
    anyio.run(main)
