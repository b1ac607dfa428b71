import { ActionIcon, Menu, Skeleton, Title, Tooltip, UnstyledButton } from '@mantine/core';
import { useLocalStorage } from '@mantine/hooks';
import { Plural, Trans, useLingui } from '@lingui/react/macro';
import { IconArrowDown, IconArrowUp, IconColumns3 } from '@tabler/icons-react';
import { useVirtualizer } from '@tanstack/react-virtual';
import { useEffect, useMemo, useRef, type ReactNode } from 'react';
import { useLocation } from 'wouter';
import { MissingNodes } from './missing-nodes';
import { ErrorState, Loading } from './states';
import { useUrlState } from './url-state';

export interface Column<T> {
  /** Stable; the choice of columns is remembered by it. */
  id: string;
  header: string;
  cell: (row: T) => ReactNode;
  align?: 'right';
  width?: number | string;
  /** Not shown until it is chosen. */
  isHidden?: boolean;
  /** What the rows can be sorted by, once all of them are loaded. */
  sort?: (row: T) => string | number | null | undefined;
}

/** The fields by which the node sorts a list, by the columns that show them. */
export type NodeOrder = Record<string, string>;

/** The parameter `sort` of a list whose table has this order; `undefined`: as the node sends it. */
export function useNodeOrder(fields: NodeOrder, initialOrder?: string): string | undefined {
  const [order] = useUrlState('sort', initialOrder);
  const isDescending = order.startsWith('-');
  const field = fields[isDescending ? order.slice(1) : order];
  return field === undefined ? undefined : isDescending ? `-${field}` : field;
}

interface TableProps<T> {
  /** Names the table for the choice of columns and for screen readers. */
  name: string;
  label: string;
  columns: Column<T>[];
  rows: T[] | undefined;
  rowKey: (row: T) => string;
  /** Where a click on a row leads; the first column has to contain a link to the same place. */
  rowHref?: (row: T) => string;
  error?: Error | null;
  retry?: () => void;
  empty: ReactNode;
  /** Search field and filters, left of the choice of columns. */
  toolbar?: ReactNode;
  hasMore?: boolean;
  isLoadingMore?: boolean;
  loadMore?: () => void;
  /** Nodes of a cluster that did not answer, whose rows are missing. */
  missingNodes?: readonly string[];
  /** The column that the rows are sorted by at first, with `-` in descending order; default: as the node sent them. */
  initialOrder?: string;
  /** Columns by which the node sorts the rows, see `useNodeOrder`; also while not all of them are loaded. */
  nodeOrder?: NodeOrder;
  /** Without it the table takes the height that the page leaves. */
  height?: number | string;
}

/** What a table needs of a list that is read page by page. */
export function pagesOf<T>(list: {
  rows: T[] | undefined;
  data?: { pages: { missing_nodes?: string[] }[] } | undefined;
  error: Error | null;
  refetch: () => unknown;
  hasNextPage: boolean;
  isFetchingNextPage: boolean;
  fetchNextPage: () => unknown;
}) {
  return {
    rows: list.rows,
    error: list.error,
    retry: () => void list.refetch(),
    hasMore: list.hasNextPage,
    isLoadingMore: list.isFetchingNextPage,
    loadMore: () => void list.fetchNextPage(),
    missingNodes: list.data?.pages.flatMap((page) => page.missing_nodes ?? []) ?? [],
  };
}

const rowHeight = 36;
const overscan = 8;
/** Rows from the end at which the next page is requested. */
const ahead = 30;

/** A table of any length: only visible rows are in the document. */
export function DataTable<T>(props: TableProps<T>) {
  const { t } = useLingui();
  const { columns, rowKey, hasMore, isLoadingMore, loadMore } = props;
  const [chosen, setChosen] = useLocalStorage<Record<string, boolean>>({
    key: `tidegate.columns.${props.name}`,
    defaultValue: {},
  });
  const shown = columns.filter((column) => chosen[column.id] ?? !column.isHidden);
  const [order, setOrder] = useUrlState('sort', props.initialOrder);
  const isOfNode = (id: string) => props.nodeOrder?.[id] !== undefined;
  const rows = useSorted(props.rows, columns, hasMore || isOfNode(order.replace(/^-/, '')) ? '' : order);
  const scroller = useRef<HTMLDivElement>(null);
  const [, navigate] = useLocation();
  const count = rows?.length ?? 0;
  const isLoaded = rows !== undefined;
  const virtual = useVirtualizer({
    count,
    getScrollElement: () => scroller.current,
    estimateSize: () => rowHeight,
    overscan,
  });
  const items = virtual.getVirtualItems();
  const first = items[0];
  const last = items[items.length - 1];
  const lastIndex = last?.index ?? 0;
  useEffect(() => {
    // A page may be empty although more follow: the node examines a limited number of objects for each.
    if (hasMore && !isLoadingMore && isLoaded && lastIndex >= count - ahead) loadMore?.();
  }, [count, hasMore, isLoaded, isLoadingMore, lastIndex, loadMore]);

  const orderBy = (id: string) => {
    scroller.current?.scrollTo({ top: 0 });
    setOrder(nextOrder(order, id));
  };

  const body = () => {
    if (rows === undefined) {
      return Array.from({ length: 8 }, (_, row) => (
        <tr key={row} aria-hidden>
          {shown.map((column) => (
            <td key={column.id}>
              <Skeleton height={12} width={`${50 + ((row * 23) % 40)}%`} />
            </td>
          ))}
        </tr>
      ));
    }
    return items.map((item) => {
      const row = rows[item.index];
      if (row === undefined) return null;
      const href = props.rowHref?.(row);
      return (
        <tr
          key={rowKey(row)}
          className={href ? 'clickable' : undefined}
          onClick={(event) => {
            const isControl = (event.target as Element).closest('a, button, input, label');
            if (href && !isControl && !window.getSelection()?.toString()) navigate(href);
          }}
        >
          {shown.map((column) => (
            <td key={column.id} className={column.align}>
              {column.cell(row)}
            </td>
          ))}
        </tr>
      );
    });
  };

  return (
    <section className="panel table-panel">
      <div className="table-toolbar">
        <div className="row wrap grow">
          {props.toolbar ?? <Title order={2}>{props.label}</Title>}
          <MissingNodes nodes={props.missingNodes} />
        </div>
        <Menu closeOnItemClick={false}>
          <Menu.Target>
            <Tooltip label={t`Columns`}>
              <ActionIcon aria-label={t`Columns`}>
                <IconColumns3 size={16} />
              </ActionIcon>
            </Tooltip>
          </Menu.Target>
          <Menu.Dropdown>
            {columns.slice(1).map((column) => (
              <Menu.CheckboxItem
                key={column.id}
                checked={chosen[column.id] ?? !column.isHidden}
                onChange={(isShown) => setChosen({ ...chosen, [column.id]: isShown })}
              >
                {column.header}
              </Menu.CheckboxItem>
            ))}
          </Menu.Dropdown>
        </Menu>
      </div>
      {props.error && rows === undefined ? (
        <ErrorState error={props.error} retry={props.retry} />
      ) : isLoaded && count === 0 ? (
        hasMore ? (
          <Loading />
        ) : (
          props.empty
        )
      ) : (
        <div
          ref={scroller}
          className="table-scroller"
          style={{ maxHeight: props.height ?? 'calc(100dvh - 300px)' }}
          tabIndex={0}
          role="region"
          aria-label={props.label}
        >
          <table className="data-table">
            <thead>
              <tr>
                {shown.map((column) => (
                  <th
                    key={column.id}
                    className={column.align}
                    style={{ width: column.width }}
                    scope="col"
                    aria-sort={order === column.id ? 'ascending' : order === `-${column.id}` ? 'descending' : undefined}
                  >
                    {isOfNode(column.id) || (column.sort && !hasMore) ? (
                      <UnstyledButton className="sort-button" onClick={() => orderBy(column.id)}>
                        {column.header}
                        {order === column.id && <IconArrowUp size={12} aria-hidden />}
                        {order === `-${column.id}` && <IconArrowDown size={12} aria-hidden />}
                      </UnstyledButton>
                    ) : (
                      column.header
                    )}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {first && first.start > 0 && (
                <tr aria-hidden>
                  <td colSpan={shown.length} style={{ height: first.start, padding: 0, border: 0 }} />
                </tr>
              )}
              {body()}
              {last && virtual.getTotalSize() - last.end > 0 && (
                <tr aria-hidden>
                  <td
                    colSpan={shown.length}
                    style={{ height: virtual.getTotalSize() - last.end, padding: 0, border: 0 }}
                  />
                </tr>
              )}
            </tbody>
          </table>
        </div>
      )}
      {count > 0 && (
        <div className="table-footer dimmed" aria-live="polite">
          {hasMore ? (
            <Trans>{count} loaded; more follow while you scroll</Trans>
          ) : (
            <Plural value={count} one="# row" other="# rows" />
          )}
        </div>
      )}
    </section>
  );
}

/** Ascending, then descending, then as the node sent them. */
function nextOrder(order: string, id: string): string {
  if (order === id) return `-${id}`;
  return order === `-${id}` ? '' : id;
}

function useSorted<T>(rows: T[] | undefined, columns: Column<T>[], order: string): T[] | undefined {
  const isDescending = order.startsWith('-');
  const sort = columns.find((column) => column.id === (isDescending ? order.slice(1) : order))?.sort;
  // The function is another one in each rendering; the order names it.
  const by = useRef(sort);
  by.current = sort;
  return useMemo(() => {
    const value = by.current;
    if (rows === undefined || value === undefined || order === '') return rows;
    const sign = isDescending ? -1 : 1;
    return [...rows].sort((a, b) => {
      const [left, right] = [value(a), value(b)];
      if (left == null || right == null) return left == null ? (right == null ? 0 : 1) : -1;
      if (typeof left === 'number' && typeof right === 'number') return sign * (left - right);
      return sign * String(left).localeCompare(String(right), undefined, { numeric: true });
    });
  }, [rows, order, isDescending]);
}
