import { useCallback } from 'react';
import { useSearchParams } from 'wouter';

/** A value in the query of the page's address, so that what is shown can be shared as a link. */
export function useUrlState(name: string, initial = ''): [string, (value: string) => void] {
  const [parameters, setParameters] = useSearchParams();
  const set = useCallback(
    (value: string) => {
      setParameters(
        (previous) => {
          const next = new URLSearchParams(previous);
          if (value === initial) next.delete(name);
          else next.set(name, value);
          return next;
        },
        { replace: true },
      );
    },
    [initial, name, setParameters],
  );
  return [parameters.get(name) ?? initial, set];
}
