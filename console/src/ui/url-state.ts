import { useCallback } from 'react';
import { useLocation, useSearch } from 'wouter';

/** A value in the query of the page's address, so that what is shown can be shared as a link. */
export function useUrlState(name: string, initial = ''): [string, (value: string) => void] {
  const search = useSearch();
  const [, navigate] = useLocation();
  const set = useCallback(
    (value: string) => {
      // The address as it is now, not as it was rendered: an event may set several values, each with a hook of its own.
      const query = withValue(location.search, name, value, initial);
      navigate(`${location.pathname}${query}`, { replace: true, state: history.state as unknown });
    },
    [initial, name, navigate],
  );
  return [new URLSearchParams(search).get(name) ?? initial, set];
}

/** A query with a value changed; the initial value needs no parameter. */
export function withValue(query: string, name: string, value: string, initial: string): string {
  const parameters = new URLSearchParams(query);
  if (value === initial) parameters.delete(name);
  else parameters.set(name, value);
  const text = parameters.toString();
  return text === '' ? '' : `?${text}`;
}
