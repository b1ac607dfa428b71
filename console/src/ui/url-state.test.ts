import { expect, test, vi } from 'vitest';

// A hook outside of a component: the rendered search is that of the first rendering, as within one event.
const rendered = '?range=24h';
const address = { pathname: '/telemetry', search: rendered };
vi.stubGlobal('location', address);
vi.stubGlobal('history', { state: { topic: 'a' } });
const navigate = vi.fn((to: string, _options: unknown) => {
  address.search = to.slice(address.pathname.length);
});
vi.mock('react', () => ({ useCallback: <T>(callback: T) => callback }));
vi.mock('wouter', () => ({ useSearch: () => rendered, useLocation: () => [address.pathname, navigate] }));

const { useUrlState, withValue } = await import('./url-state');

test('values that one event sets are all kept', () => {
  const [, setFrom] = useUrlState('from');
  const [, setTo] = useUrlState('to');
  setFrom('1');
  setTo('2');
  expect(address.search).toBe('?range=24h&from=1&to=2');
  expect(navigate).toHaveBeenLastCalledWith(expect.any(String), { replace: true, state: { topic: 'a' } });
});

test('the initial value has no parameter', () => {
  expect(withValue('?tab=trace', 'tab', 'edit', 'edit')).toBe('');
  expect(withValue('', 'tab', 'a b', 'edit')).toBe('?tab=a+b');
});
